"""Latent vectors in the cache: what a token takes, int8 blocks, and what is refused."""

import json

import pytest
import torch
from kit.engine.parts import worker_of
from kit.folder.checkpoint import write_tokenizer
from kit.model.families import CASES
from kit.model.golden import SIZES, random_model

from lullm import LLM, SamplingParams
from lullm.config.model import ModelConfig
from lullm.errors import ConfigError, ModelLoadError
from lullm.kv.layout import block_bytes
from lullm.ops.cpu import native_latent
from lullm.ops.cpu.library import load_library

OPTIONS = {"dtype": "float32", "max_model_len": 128, "block_size": 8}
PROMPT = list(range(3, 60))
SIZE = 24 + 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepseek")
    random_model("DeepseekV3", SIZES | CASES["DeepseekV3"].engine | {"vocab_size": 320}).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def test_a_token_takes_one_vector(folder):
    config = ModelConfig.from_folder(folder)
    assert (config.num_key_value_heads, config.head_dim) == (1, SIZE)
    assert block_bytes(config, 8, "bfloat16") == 3 * 8 * SIZE * 2
    with LLM(str(folder), **OPTIONS, num_gpu_blocks_override=20, swap_space=0) as llm:
        pools = worker_of(llm).pools
        assert pools.block_bytes == 3 * 8 * SIZE * 4
        assert all(cache.key is cache.value for cache in pools.device)
        (arena,) = [arena for arena in pools.arenas if arena.tag == "kv_cache"]
        assert 20 * pools.block_bytes <= arena.used_bytes < 21 * pools.block_bytes


def test_int8_blocks_stay_near(folder):
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    found = []
    for kv_cache_dtype in ("auto", "int8"):
        with LLM(str(folder), **OPTIONS, kv_cache_dtype=kv_cache_dtype) as llm:
            (output,) = llm.generate([PROMPT], params, use_tqdm=False)
        pairs = zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
        found.append(torch.tensor([entry[token_id].logprob for entry, token_id in pairs]))
    assert 1e-4 < (found[0] - found[1]).abs().mean() < 0.06


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Of sizes that native attention has for the cache's rows and for heads."""
    folder = tmp_path_factory.mktemp("wide")
    sizes = {"kv_lora_rank": 56, "qk_nope_head_dim": 24, "v_head_dim": 28, "max_position_embeddings": 512}
    random_model("DeepseekV3", SIZES | CASES["DeepseekV3"].engine | {"vocab_size": 320} | sizes).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.mark.skipif(load_library() is None, reason="the native ops are not built here")
def test_chunks_with_and_without_expanded_heads(wide, monkeypatch):
    """A prompt whole (its heads are expanded), in chunks that are and chunks that are not: the same numbers."""
    num_rows = []  # of every call that expands
    attend = native_latent._attend_expanded
    monkeypatch.setattr(native_latent, "_attend_expanded", lambda q, *rest: num_rows.append(len(q)) or attend(q, *rest))
    prompt = [3 + 7 * i % 290 for i in range(300)]
    params = SamplingParams(temperature=0.0, max_tokens=8, prompt_logprobs=0, ignore_eos=True)
    found = []
    for size, expected in ((512, [300] * 3), (192, [192] * 3 + [108] * 3), (40, [])):  # of three layers
        options = {"max_model_len": 320, "max_num_batched_tokens": size, "max_num_seqs": 4}
        num_rows.clear()
        with LLM(str(wide), **OPTIONS | options) as llm:
            (output,) = llm.generate([prompt], params, use_tqdm=False)
        assert num_rows == expected
        pairs = zip(output.prompt_logprobs[1:], prompt[1:], strict=True)
        logprobs = torch.tensor([entry[token_id].logprob for entry, token_id in pairs])
        found.append((logprobs, output.outputs[0].token_ids))
    for logprobs, token_ids in found[1:]:
        torch.testing.assert_close(logprobs, found[0][0], rtol=1e-4, atol=1e-4)
        assert token_ids == found[0][1]


@pytest.mark.parametrize("options", [{"kv_cache_dtype": "fp8"}, {"batch_invariant": True}], ids=str)
def test_what_is_refused(folder, options):
    with pytest.raises(ConfigError, match="is not there for DeepseekV3ForCausalLM, which keeps latent vectors"):
        LLM(str(folder), **OPTIONS | options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 is not num_attention_heads .4."),
        ({"head_dim": 16}, "head_dim 16 is not qk_rope_head_dim .8."),
        ({"qk_rope_head_dim": 7, "head_dim": None}, "qk_rope_head_dim .7. must be even"),
        ({"n_group": 4}, "n_group .4. must part n_routed_experts"),
    ],
)
def test_sizes_that_make_no_sense(folder, changes, message):
    data = json.loads((folder / "config.json").read_text())
    with pytest.raises(ModelLoadError, match=message):
        ModelConfig.from_dict(data | changes)
