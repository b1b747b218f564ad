"""Decode and prefill of every family, as shares of what memory and products of this machine allow, beside Qwen3's.

    python bench/models.py                                     all families, some seconds each
    python bench/models.py --family Gemma3 --family Qwen3Moe --json models.json

Layers have the sizes of a family's small model. They are fewer, so that weights (random ones) take 0.5 to 1.6 GB; of a
mixture of experts there are fewer experts, of which a token uses as many as in the model. The vocabulary has 32,768
tokens everywhere, since reading a large head is the easy part.

A decode step of one stream must read the weights, but of the experts only those that are used, and the keys and values.
A prompt must multiply all its rows by the weights that each uses, or read all weights, whichever takes longer. "By
parts" is what it takes if each matrix (of a layer's experts all at once) is read and multiplied before the next: the
sum of what takes longer of each. No engine that goes layer by layer reads experts while it multiplies for attention.
The ceilings are measured first: a sum over a gigabyte of memory, and products alone (see `ceilings.py`). Printed
are medians over steps of the whole engine, and of the share what Qwen3's is in the same rounds, in turn.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from ceilings import Ceilings
from engine_part import model_of, recorded_sizes_of

from lullm import LLM, SamplingParams
from lullm.config.family.table import STYLES
from lullm.models.protocol import Model
from lullm.models.work import Work, parts
from lullm.types.layer_kind import Nothing, RecurrentState

Options = dict[str, Any]
EVERY: Options = {
    "vocab_size": 32768, "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "eos_token_id": 0,
    "tie_word_embeddings": True,
}  # fmt: skip


def decoder(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> Options:
    return {
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
    }  # fmt: skip


def latent(hidden: int, intermediate: int, layers: int, heads: int, plain: int, value: int) -> Options:
    """Latent vectors of 512 elements, and 64 that turn."""
    sizes = decoder(hidden, intermediate, layers, heads, heads, 64)
    return sizes | {
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": plain, "v_head_dim": value,
    }  # fmt: skip


FAMILIES: dict[str, Options] = {
    "Qwen3": decoder(1024, 3072, 20, 16, 8, 128),
    "Qwen2": decoder(896, 4864, 20, 14, 2, 64),
    "Llama": decoder(2048, 8192, 6, 32, 8, 64),
    "Mistral": decoder(4096, 14336, 2, 32, 8, 128),
    "SmolLM3": decoder(2048, 11008, 6, 16, 4, 128) | {"no_rope_layers": [1, 1, 1, 0, 1, 1], "pad_token_id": 0},
    "Phi3": decoder(3072, 8192, 4, 32, 32, 96) | {"pad_token_id": 0},
    "Granite": decoder(2048, 8192, 6, 32, 8, 64)
    | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.016, "logits_scaling": 8.0},
    "Olmo2": decoder(2048, 8192, 6, 16, 16, 128) | {"tie_word_embeddings": False},
    "Olmo3": decoder(2048, 8192, 6, 16, 16, 128) | {"tie_word_embeddings": False, "sliding_window": 4096},
    "Gemma2": decoder(2304, 9216, 5, 8, 4, 256) | {"sliding_window": 4096},
    "Gemma3": decoder(1152, 6912, 18, 4, 1, 256) | {"sliding_window": 512, "query_pre_attn_scalar": 256},
    "GPT2": {"n_embd": 1024, "n_layer": 24, "n_head": 16, "n_positions": 4096},
    "OPT": {
        "hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 8, "num_attention_heads": 32,
        "word_embed_proj_dim": 2048,
    },
    "Qwen3Moe": decoder(2048, 6144, 3, 32, 4, 128)
    | {"num_experts": 32, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True},
    "Qwen2Moe": decoder(2048, 5632, 3, 16, 16, 128)
    | {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
    | {"shared_expert_intermediate_size": 5632},
    "Mixtral": decoder(2048, 7168, 2, 16, 4, 128) | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "Olmoe": decoder(2048, 1024, 3, 16, 16, 128) | {"num_experts": 32, "num_experts_per_tok": 8},
    "Glm4Moe": decoder(2048, 10944, 3, 32, 8, 128)
    | {"n_routed_experts": 32, "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_group": 1, "topk_group": 1},
    "Qwen3Next": decoder(2048, 5120, 4, 16, 2, 256)
    | {"full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32}
    | {"num_experts": 64, "num_experts_per_tok": 10, "moe_intermediate_size": 512}
    | {"shared_expert_intermediate_size": 512},
    "Qwen3_5": decoder(2048, 6144, 8, 8, 2, 256)
    | {"full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 16},
    "Qwen3_5Moe": decoder(2048, 5120, 4, 16, 2, 256)
    | {"full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32}
    | {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
    | {"shared_expert_intermediate_size": 512},
    "KimiLinear": latent(2304, 9216, 4, 32, 128, 128)
    | {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "head_dim": None, "num_local_experts": 24},
    "GraniteMoeHybrid": decoder(1536, 512, 8, 12, 4, 128)
    | {"layer_types": ["mamba"] * 5 + ["attention"] + ["mamba"] * 2, "mamba_n_heads": 48, "mamba_d_head": 64}
    | {"mamba_d_state": 128, "num_local_experts": 64, "num_experts_per_tok": 6, "shared_intermediate_size": 1024},
    "Bamba": decoder(2048, 8192, 6, 16, 4, 128)
    | {"attn_layer_indices": [2], "mamba_n_heads": 64, "mamba_d_state": 128},
    "FalconH1": decoder(2048, 4096, 10, 8, 2, 128)
    | {"mamba_d_ssm": 3072, "mamba_n_heads": 48, "mamba_n_groups": 1, "mamba_d_state": 256},
    "Mamba": {"hidden_size": 1536, "num_hidden_layers": 16},
    "FalconMamba": {"hidden_size": 4096, "num_hidden_layers": 4, "time_step_rank": 256},
    "Jamba": decoder(2560, 8192, 6, 20, 1, 128)
    | {"num_experts": 1, "attn_layer_period": 6, "attn_layer_offset": 3, "mamba_dt_rank": 160},
    "Mamba2": {"hidden_size": 2048, "num_hidden_layers": 12, "num_heads": 64, "head_dim": 64, "n_groups": 1},
    "NemotronH": decoder(4480, 15680, 4, 40, 8, 128)
    | {"layers_block_type": ["mamba", "mlp", "mamba", "attention"], "ssm_state_size": 128, "mamba_head_dim": 80}
    | {"mamba_num_heads": 128, "n_groups": 8}
    | {"num_hidden_layers": None},
    "Lfm2": decoder(2048, 12288, 8, 32, 8, 64)
    | {"layer_types": ["conv", "conv", "full_attention", "conv"] * 2},
    "Lfm2Moe": decoder(2048, 7168, 4, 32, 8, 64)
    | {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_dense_layers": 1, "num_experts": 32}
    | {"num_experts_per_tok": 4, "moe_intermediate_size": 1792},
    "Glm4MoeLite": latent(2048, 10240, 4, 20, 192, 256)
    | {"q_lora_rank": 768, "n_routed_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1536}
    | {"n_group": 1, "topk_group": 1},
    "DeepseekV2": latent(2048, 10944, 4, 16, 128, 128)
    | {"q_lora_rank": None, "n_routed_experts": 32, "num_experts_per_tok": 6, "moe_intermediate_size": 1408}
    | {"n_shared_experts": 2, "topk_method": "greedy"},
    "Gemma4": decoder(1536, 6144, 15, 8, 1, 256)
    | {"sliding_window": 512, "num_kv_shared_layers": 5, "use_double_wide_mlp": True}
    | {"vocab_size_per_layer_input": 32768, "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 3},
    "GptOss": decoder(2880, 2880, 2, 64, 8, 64) | {"num_local_experts": 12, "num_experts_per_tok": 4},
}  # fmt: skip
"""By the name of the architecture, without `ForCausalLM`."""
SMALLER = {
    "hidden_size": 64, "n_embd": 64, "intermediate_size": 64, "ffn_dim": 64, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64, "num_hidden_layers": 2, "n_layer": 2, "num_attention_heads": 2, "n_head": 2,
    "num_key_value_heads": 2, "num_heads": 4, "head_dim": 32, "word_embed_proj_dim": 64, "no_rope_layers": [1, 0],
    "linear_num_value_heads": 2, "mamba_n_heads": 4, "mamba_d_head": "auto", "mamba_d_ssm": 128, "mamba_num_heads": 8,
    "mamba_d_state": 16, "shared_intermediate_size": 64, "layer_types": ["full_attention", "full_attention"],
    "layers_block_type": ["mamba", "attention"], "attn_layer_indices": [1], "linear_num_key_heads": 2,
    "full_attention_interval": 2, "num_kv_shared_layers": 1, "qk_rope_head_dim": 32, "attn_layer_period": 2,
    "attn_layer_offset": 1,
}  # fmt: skip


def architecture_of(family: str) -> str:
    return "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"


def config_of(family: str, is_tiny: bool) -> Options:
    """A config.json."""
    shape = FAMILIES[family]
    if is_tiny:
        shape = {key: SMALLER.get(key, value) for key, value in shape.items()}
    return EVERY | shape | {"architectures": [architecture_of(family)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, action="append", help="(default: all)")
    parser.add_argument("--steps", type=int, default=12, help="of decode, in each round (default: 12)")
    parser.add_argument("--rounds", type=int, default=3, help="of a prompt and those steps (default: 3)")
    parser.add_argument("--input-len", type=int, default=1024)
    parser.add_argument("--tiny", action="store_true", help="sizes that are no model's, to try the script")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    limits = Ceilings()
    ceilings = limits.figures(1 if args.tiny else 5)
    limits.close()
    missing = sorted(STYLES.keys() - {architecture_of(family) for family in FAMILIES})
    if missing:
        print(f"no shape here for {', '.join(missing)}")
    print(
        "| family | GB read | decode, ms | share | of Qwen3's | prefill, ms | share | of Qwen3's "
        "| share by parts | of Qwen3's | recorded |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|")
    found: dict[str, dict[str, Any]] = {}
    base = Family("Qwen3", args.tiny)
    for name in dict.fromkeys(args.family or FAMILIES):
        family = base if name == "Qwen3" else Family(name, args.tiny)
        found[name] = row = compare(family, base, args, ceilings)
        print(
            f"| {name} | {row['decode_GB']:.2f} | {row['decode_ms']:.2f} | {row['decode_share']:.0%} "
            f"| {row['decode_ratio']:.2f} | {row['prefill_ms']:.0f} | {row['prefill_share']:.0%} "
            f"| {row['prefill_ratio']:.2f} | {row['parts_share']:.0%} | {row['parts_ratio']:.2f} | {row['recorded']} |",
            flush=True,
        )
        if family is not base:
            family.llm.shutdown()
    if args.json:
        args.json.write_text(json.dumps({"ceilings": ceilings, "families": found}, indent=1))


class Family:
    """An engine with a model of a family's sizes and random weights."""

    def __init__(self, name: str, is_tiny: bool):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(config_of(name, is_tiny)))
            self.llm = LLM(
                model=folder, tokenizer="demo", load_format="dummy", max_model_len=2048, max_num_seqs=2,
                enable_prefix_caching=False, kv_cache_memory_bytes=1 << 30,
            )  # fmt: skip
        self.model = model_of(self.llm)


def compare(family: Family, base: Family, args: argparse.Namespace, ceilings: dict[str, float]) -> dict[str, Any]:
    """Both take turns, so that other work on the machine meets both."""
    both = {"own": family, "base": base}
    prefills: dict[str, list[float]] = {name: [] for name in both}
    decodes: dict[str, list[float]] = {name: [] for name in both}
    for round_ in range(args.rounds + 1):
        for name, one in both.items():
            prefill, steps = prompt_s(one.llm.llm_engine, args.input_len), decode_s(one.llm.llm_engine, args.steps)
            if round_:  # the first one records
                prefills[name].append(prefill)
                decodes[name] += steps
    row: dict[str, Any] = {"recorded": "yes" if recorded_sizes_of(family.llm) else "no"}
    works = {name: decode_work(one.model, 128 + args.steps // 2) for name, one in both.items()}
    row |= {"decode_GB": sum(work.num_bytes for work in works["own"]) / 1e9}
    row |= shares_of("decode", {name: least_s(work, ceilings) for name, work in works.items()}, decodes)
    works = {name: prefill_work(one.model, args.input_len) for name, one in both.items()}
    row |= shares_of("prefill", {name: least_s(work, ceilings) for name, work in works.items()}, prefills)
    by_parts = {name: sum(least_s([part], ceilings) for part in work) for name, work in works.items()}
    return row | shares_of("parts", by_parts, prefills)


def shares_of(kind: str, least: dict[str, float], seconds: dict[str, list[float]]) -> dict[str, float]:
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    shares = {name: least[name] / medians[name] for name in medians}
    found = {"ms": 1e3 * medians["own"], "share": shares["own"], "ratio": shares["own"] / shares["base"]}
    return {f"{kind}_{name}": value for name, value in found.items()}


def decode_s(engine: Any, num_steps: int) -> list[float]:
    """Seconds of each decode step of one stream, after the first two."""
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + 3, ignore_eos=True)
    engine.add_request("decode", random_prompt(128), params)
    for _ in range(3):
        engine.step()
    seconds = []
    for _ in range(num_steps):
        started = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started)
    assert not engine.has_unfinished_requests(), "every step was one token of this stream"
    return seconds


def prompt_s(engine: Any, length: int) -> float:
    engine.add_request("prefill", random_prompt(length), SamplingParams(temperature=0.0, max_tokens=1))
    started = time.perf_counter()
    engine.step()
    assert not engine.has_unfinished_requests(), "a prompt is one step"
    return time.perf_counter() - started


def random_prompt(length: int) -> list[int]:
    return [random.Random(length + i).randrange(10, 4000) for i in range(length)]


def least_s(works: list[Work], ceilings: dict[str, float]) -> float:
    """Of all of them beside each other: reading for one goes on while another is multiplied."""
    reading = sum(work.num_bytes for work in works) / (ceilings["read GB/s"] * 1e9)
    return max(reading, sum(work.num_operations for work in works) / (ceilings["products TFLOP/s"] * 1e12))


def decode_work(model: Model, context_len: int) -> list[Work]:
    """A step of one stream: weights, keys and values so far, and states, which are written, too."""
    config = model.config
    works = [Work(part.num_bytes, 0) for part in parts(model, config, 1)]
    for kind in config.layer_kinds:
        if isinstance(kind, RecurrentState):
            works.append(Work(2 * 4 * kind.num_elements, 0))
        elif not isinstance(kind, Nothing):
            works.append(Work(context_len * 2 * config.num_key_value_heads * config.head_dim * 2, 0))
    return works


def prefill_work(model: Model, num_rows: int) -> list[Work]:
    """A prompt: the head is for one row. What recurrences add counts as no work."""
    config = model.config
    pairs = num_rows * (num_rows + 1) / 2  # windows here are as long as the prompt, or nearly so
    num_attending = sum(not isinstance(kind, (RecurrentState, Nothing)) for kind in config.layer_kinds)
    attention = Work(0, 4 * config.num_attention_heads * config.head_dim * pairs)
    return parts(model, config, num_rows) + [attention] * num_attending


if __name__ == "__main__":
    main()
