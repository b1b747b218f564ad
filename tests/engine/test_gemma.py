"""Gemma through the engine: layers with a window of 32 tokens beside layers with full attention, prompts of up to 200.

The tokens are transformers', whatever the engine does to get them.
"""

import pytest
import torch
from kit.engine.parts import ops_of
from kit.engine.prompts import prompts_beyond_a_window
from kit.folder.checkpoint import write_checkpoint
from kit.model.greedy import assert_logprobs_equal, greedy_tokens, tokens_of
from transformers import AutoModelForCausalLM

from lullm import LLM, SamplingParams
from lullm.config.model import ModelConfig
from lullm.kv.layout import num_blocks_for_len

WINDOW, BLOCK_SIZE = 32, 8
OPTIONS = {"dtype": "float32", "max_model_len": 256, "block_size": BLOCK_SIZE}
GREEDY = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
PROMPTS = prompts_beyond_a_window([8, 9], 6)


def tokens(llm: LLM):
    return tokens_of(llm, PROMPTS, GREEDY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(
        tmp_path_factory.mktemp("gemma3"), "gemma3", num_hidden_layers=7, sliding_window=WINDOW,
        query_pre_attn_scalar=16,
    )  # fmt: skip


def transformers_tokens(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = [[greedy_tokens(model, prompt, GREEDY.max_tokens)] for prompt in PROMPTS]
    assert len({token for [output] in found for token in output}) > 20, "a model that says something"
    return found


@pytest.fixture(scope="module")
def expected(folder):
    return transformers_tokens(folder)


@pytest.mark.half
@pytest.mark.parametrize("chunk", [7, 64, 2048])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_greedy_tokens_equal_transformers(folder, expected, chunk, enable_prefix_caching):
    options = {"max_num_batched_tokens": chunk, "max_num_seqs": 7, "enable_prefix_caching": enable_prefix_caching}
    with LLM(str(folder), **OPTIONS, **options, num_gpu_blocks_override=2000) as llm:
        assert tokens(llm) == expected
        if enable_prefix_caching:
            hits = llm.llm_engine.stats().prefix_cache_hits_total
            assert tokens(llm) == expected, "with every prompt in the cache"
            assert llm.llm_engine.stats().prefix_cache_hits_total >= hits + 6 * 176


def test_logprobs_equal_transformers(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=3, prompt_logprobs=0, ignore_eos=True)
    with LLM(str(folder), **OPTIONS, max_num_batched_tokens=48, max_num_seqs=4) as llm:
        [output] = llm.generate([PROMPTS[2]], params, use_tqdm=False)
    assert_logprobs_equal(model, output)


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption_changes_nothing(folder, expected, enable_prefix_caching, mode):
    with LLM(
        str(folder), **OPTIONS, num_gpu_blocks_override=112, preemption_mode=mode,
        enable_prefix_caching=enable_prefix_caching,
    ) as llm:  # fmt: skip
        assert tokens(llm) == expected
        assert llm.llm_engine.stats().num_preemptions > 0


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_in_the_middle_changes_nothing(folder, expected, level):
    """Level 1 keeps the blocks of all groups; level 2 reads the norms, which are stored less 1, once more."""
    with LLM(str(folder), **OPTIONS, enable_sleep_mode=True) as llm:
        engine, found = llm.llm_engine, {}
        for number, prompt in enumerate(PROMPTS):
            engine.add_request(str(number), prompt, GREEDY)
        for step in range(10_000):
            if step == 12:
                engine.sleep(level=level, mode="keep")
                engine.wake_up()
            for output in engine.step():
                found[int(output.request_id)] = [output.outputs[0].token_ids]
            if not engine.has_unfinished_requests():
                break
        assert [found[number] for number in range(len(found))] == expected


def test_gemma_2_gets_attention_that_caps(tmp_path):
    folder = write_checkpoint(
        tmp_path / "gemma2", "gemma2", sliding_window=WINDOW, query_pre_attn_scalar=1, attn_logit_softcapping=2.0
    )
    expected = transformers_tokens(folder)
    with LLM(str(folder), **OPTIONS) as llm:
        assert "soft_cap" in ops_of(llm).attention_features
        assert tokens(llm) == expected
    (folder / "config.json").write_text((folder / "config.json").read_text().replace("2.0", "null"))
    with LLM(str(folder), **OPTIONS) as llm:
        assert tokens(llm) != expected, "the cap makes a difference"


@pytest.mark.parametrize(("options", "bound"), [
    ({"dtype": "bfloat16"}, 0.03),
    ({"quantization": "int8"}, 0.08),
    ({"kv_cache_dtype": "int8"}, 0.02),
    ({"kv_cache_dtype": "fp8"}, 0.1),
    ({"kv_cache_dtype": "fp8", "calculate_kv_scales": True}, 0.1),
], ids=str)  # fmt: skip
def test_fewer_bits_stay_near(folder, options, bound):
    """With a scale per layer where layers share the slots of a block."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    found = []
    for changes in ({}, options):
        with LLM(str(folder), **OPTIONS | {"max_num_batched_tokens": 64, "max_num_seqs": 4} | changes) as llm:
            [output] = llm.generate([PROMPTS[2]], params, use_tqdm=False)
        entries = zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
        found.append(torch.tensor([entry[token_id].logprob for entry, token_id in entries]))
    error = (found[0] - found[1]).abs().mean()
    assert 1e-4 < error < bound, error


def test_torchs_attention_gives_the_same(folder, expected):
    with LLM(str(folder), **OPTIONS, attention_backend="torch") as llm:
        assert tokens(llm) == expected


def test_window_layers_free_what_they_have_left(folder):
    """Blocks of a long context: the full layer's grow with it, the six window layers' stay at their window.

    All seven as full attention would hold 7 blocks of one layer per 8 tokens.
    """
    with LLM(str(folder), **OPTIONS, enable_prefix_caching=False, num_gpu_blocks_override=400) as llm:
        engine = llm.llm_engine
        engine.add_request("0", PROMPTS[2], GREEDY)
        used = []
        while engine.has_unfinished_requests():
            engine.step()
            used.append(engine.stats().num_used_blocks)
    per_window, full = 5, 29  # 31 tokens before the next one lie in up to 4 blocks; 232 tokens
    assert max(used[1:]) <= full + 6 * per_window < 7 * full
    assert num_blocks_for_len(ModelConfig.from_folder(folder), BLOCK_SIZE, "float32", 232) == full + 6 * per_window
