"""Decode steps of every family, recorded and eager: the same bits, and no family that stays eager unnoticed."""

import json

import pytest
from kit.engine.parts import graphs_of
from kit.engine.prompts import random_prompts
from kit.model.families import BY_RARITY, CASES
from kit.model.golden import SIZES, config_data

from lullm import LLM, SamplingParams
from lullm.ops.cpu.library import absence

pytestmark = pytest.mark.skipif(absence() is not None, reason="the native ops are not built here")

ENGINE_SIZES = SIZES | {"vocab_size": 2048, "max_position_embeddings": 128}
OPTIONS = {"tokenizer": "demo", "load_format": "dummy", "dtype": "bfloat16", "max_model_len": 128, "block_size": 8}
REFUSED = {"Gemma3n", "Llama4", "Phimoe"}
"""Those whose recording is refused: torch joins residual streams, scales what experts read, chooses experts."""


HEADS = {"hidden_size": 64, "n_embd": 64, "head_dim": 16}
"""Native attention wants heads of multiples of 16."""


def write_config(folder, family):
    options = {key: value for key, value in (ENGINE_SIZES | CASES[family].engine).items() if value is not ...}
    options |= {key: size for key, size in HEADS.items() if key in options}
    (folder / "config.json").write_text(json.dumps(config_data(family, options)))
    return str(folder)


@pytest.mark.parametrize("family", BY_RARITY)
def test_recorded_decodes_equal_eager_ones(tmp_path, family):
    params = [SamplingParams(temperature=0.0, max_tokens=6 + 5 * i, ignore_eos=True, logprobs=1) for i in range(4)]
    found = {}
    for enforce_eager in (True, False):
        with LLM(write_config(tmp_path, family), **OPTIONS, enforce_eager=enforce_eager) as llm:
            outputs = llm.generate(random_prompts(4, 60), params, use_tqdm=False)
            found[enforce_eager] = [(o.outputs[0].token_ids, o.outputs[0].cumulative_logprob) for o in outputs]
            if not enforce_eager:
                graphs = graphs_of(llm)
                assert (graphs.refusal is None) == (family not in REFUSED)
                assert graphs.sizes == ([] if family in REFUSED else [1, 2, 3, 4])
    assert found[True] == found[False]
