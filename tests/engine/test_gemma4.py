"""Gemma 4 in an engine: blocks that layers of two sizes share, in 8 bits too, and what recorded steps are."""

import json

import pytest
import torch
from kit.engine.parts import graphs_of, worker_of
from kit.engine.prompts import random_prompts
from kit.folder.checkpoint import write_tokenizer
from kit.model.families import CASES, GEMMA4, GEMMA4_MOE
from kit.model.golden import SIZES, random_model

from lullm import LLM, SamplingParams
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.kv.layout import block_bytes, side_len
from lullm.ops.cpu.library import absence

OPTIONS = {"dtype": "float32", "max_model_len": 128, "block_size": 8}
PROMPT = list(range(3, 60))
EXPERTS = GEMMA4 | GEMMA4_MOE | {"hidden_size": 64, "vocab_size_per_layer_input": 2048}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma4")
    random_model("Gemma4", SIZES | CASES["Gemma4"].engine | {"vocab_size": 320}).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def test_what_a_block_takes(folder):
    """Windows have 4 heads of 16, full layers 1 of 32: two of these in a slot, and none for the three that share."""
    config = ModelConfig.from_folder(folder)
    assert side_len(config, 8, "float32") == 64
    assert side_len(config, 8, "int8") == 4 * 18 == 2 * 36, "heads of 32 have two bytes to spare"
    assert block_bytes(config, 8, "float32") == 1 * 2 * 8 * 64 * 4, "three windows, two full layers: one slot"
    with LLM(str(folder), **OPTIONS, num_gpu_blocks_override=40, swap_space=0) as llm:
        pools = worker_of(llm).pools
        assert len(pools.device) == 1 and pools.block_bytes == block_bytes(config, 8, "float32")
        (arena,) = [arena for arena in pools.arenas if arena.tag == "kv_cache"]
        assert 40 * pools.block_bytes <= arena.used_bytes < 41 * pools.block_bytes


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_blocks_of_8_bits_stay_near(folder, kv_cache_dtype):
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    found = []
    for dtype in ("auto", kv_cache_dtype):
        with LLM(str(folder), **OPTIONS, kv_cache_dtype=dtype) as llm:
            (output,) = llm.generate([PROMPT], params, use_tqdm=False)
        pairs = zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
        found.append(torch.tensor([entry[token_id].logprob for entry, token_id in pairs]))
    assert 1e-4 < (found[0] - found[1]).abs().mean() < (0.1 if kv_cache_dtype == "int8" else 0.5)


@pytest.mark.skipif(absence() is not None, reason="the native ops are not built here")
def test_steps_with_experts_are_recorded(tmp_path):
    config = random_model("Gemma4", SIZES | EXPERTS | {"vocab_size": 2048}).config.to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["Gemma4ForCausalLM"]}))
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
    found = []
    for enforce_eager in (True, False):
        options = {"tokenizer": "demo", "load_format": "dummy", "enforce_eager": enforce_eager}
        with LLM(str(tmp_path), **OPTIONS | options | {"dtype": "bfloat16"}) as llm:
            outputs = llm.generate(random_prompts(3, 40), params, use_tqdm=False)
            found.append([(o.outputs[0].token_ids, o.outputs[0].cumulative_logprob) for o in outputs])
            assert graphs_of(llm).refusal is None and bool(graphs_of(llm).sizes) != enforce_eager
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": 8}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 7}, "layer 1 shares keys and values, and before layer 1 none has its type"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers -1 must be from 0 to 7"),
        ({"per_layer_config": None, "global_head_dim": 10**8}, "global_head_dim"),
        ({"per_layer_config": {"1": {"head_dim": 10**8}}}, "head_dim"),
        ({"per_layer_config": {"x": {}}}, "per_layer_config must hold"),
        ({"per_layer_config": {"1": 7}}, "per_layer_config must hold"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all' is not supported"),
        ({"enable_moe_block": True, "num_experts": 2, "top_k_experts": 3, "moe_intermediate_size": 4}, "top_k_experts"),
    ],
)
def test_what_makes_no_sense(folder, changes, message):
    data = json.loads((folder / "config.json").read_text())
    with pytest.raises(ModelLoadError, match=message):
        ModelConfig.from_dict(data | changes)
