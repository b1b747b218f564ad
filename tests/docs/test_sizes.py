"""The table of sizes in docs/sizing.md is what `lullm plan` computes; a failure prints a row as it should be."""

import re

import pytest
from docs.markdown import ROOT

from lullm.cli.plan.model import PlannedModel
from lullm.cli.plan.roofline import PROCESS_BYTES, Machine, plan
from lullm.config.model import ModelConfig
from lullm.units import GIB

PAGE = ROOT / "docs" / "sizing.md"
LEN = 4096
ROWS = (None, "int8", "int4")
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8}
MODELS = {
    "Qwen3-0.6B": (1024, 3072, 28, 16, QWEN3 | {"tie_word_embeddings": True}),
    "Qwen3-1.7B": (2048, 6144, 28, 16, QWEN3 | {"tie_word_embeddings": True}),
    "Qwen3-4B": (2560, 9728, 36, 32, QWEN3 | {"tie_word_embeddings": True}),
    "Qwen3-8B": (4096, 12288, 36, 32, QWEN3),
    "Qwen3-14B": (5120, 17408, 40, 40, QWEN3),
    "Qwen3-30B-A3B": (
        *(2048, 6144, 48, 32),
        QWEN3
        | {"architectures": ["Qwen3MoeForCausalLM"], "num_key_value_heads": 4, "num_experts": 128}
        | {"num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True},
    ),
}
"""hidden, intermediate, layers, heads, the rest; of the models' config.json."""


QUICK = "Qwen3-0.6B"
"""The others take seconds: each row builds six models, without memory."""


def head() -> str:
    names = " | ".join(way or "bfloat16" for way in ROWS)
    return f"| model | {names} | KV of {LEN} tokens |\n|---|--:|--:|--:|--:|\n"


def row(name: str) -> str:
    hidden, intermediate, layers, heads, rest = MODELS[name]
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers}
    more = {"num_attention_heads": heads, "max_position_embeddings": 40960, "torch_dtype": "bfloat16"}
    model = PlannedModel(ModelConfig.from_dict(sizes | more | rest), None)
    assert model.ways == ROWS
    machine = Machine(memory_bytes=0, bytes_per_s=1.0, operations_per_s=1.0)
    plans = [plan(model, machine, LEN, 1, "auto", way) for way in ROWS]
    kv = plans[0].kv_bytes_per_token * LEN
    cells = [f"{(each.weights_bytes + PROCESS_BYTES + kv) / GIB:.1f} GiB" for each in plans]
    return f"| {name} | {' | '.join(cells)} | {kv / GIB:.2f} GiB |\n"


def test_the_table_has_all_rows():
    _, _, behind = PAGE.read_text().partition(head())
    assert re.findall(r"^\| (\S+) ", behind.partition("\n\n")[0], re.M) == list(MODELS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in MODELS]
)
def test_a_row_is_up_to_date(name):
    assert row(name) in PAGE.read_text(), f"write this row into docs/sizing.md:\n{row(name)}"
