"""Recurrent layers in a whole engine: forks, beams, small caches, the prefix cache; `test_family.py` has the rest."""

import pytest
from kit.engine.prompts import random_prompts
from kit.folder.checkpoint import write_tokenizer
from kit.model.families import CASES
from kit.model.golden import SIZES, random_model

from lullm import LLM, SamplingParams
from lullm.errors import UnsupportedError
from lullm.ops.cpu.library import absence
from lullm.ops.selection import TORCH_CPU_OPS, require_batch_invariance

ENGINE_SIZES = SIZES | {"vocab_size": 320, "max_position_embeddings": 256}
OPTIONS = {"dtype": "float32", "max_model_len": 160, "block_size": 8, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recurrent")
    options = ENGINE_SIZES | CASES["Qwen3_5"].engine
    random_model("Qwen3_5", options).save_pretrained(folder)
    write_tokenizer(folder)
    return str(folder)


def generate(llm, params, prompts=None):
    outputs = llm.generate(prompts or random_prompts(4, 40), params, use_tqdm=False)
    return [[own.token_ids for own in output.outputs] for output in outputs]


PARAMS = {
    "n": SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=24, ignore_eos=True),
    "beams": SamplingParams(beam_width=3, temperature=0.0, max_tokens=24, ignore_eos=True),
}


NUM_BLOCKS = {"n": 64, "beams": 44}


@pytest.mark.parametrize("kind", PARAMS)
def test_forks_have_states_of_their_own(folder, kind):
    """Whatever the cache holds: roomy, preempted and swapped, preempted and computed again."""
    found = []
    for options in (
        {},
        {"enable_prefix_caching": False, "max_num_batched_tokens": 17},
        {"num_gpu_blocks_override": NUM_BLOCKS[kind], "preemption_mode": "swap", "swap_space": 1},
        {"num_gpu_blocks_override": NUM_BLOCKS[kind], "preemption_mode": "recompute"},
    ):
        with LLM(folder, **OPTIONS, **options) as llm:
            found.append(generate(llm, PARAMS[kind]))
            if "num_gpu_blocks_override" in options:
                assert llm.llm_engine.stats().num_preemptions > 0
            assert llm.llm_engine.stats().num_used_blocks == 0
    assert all(len({tuple(ids) for ids in output}) == (PARAMS[kind].n or 1) for output in found[0])
    assert found[1:] == [found[0]] * 3


def test_a_conversation_goes_on_from_the_state_behind_its_prompt(folder):
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompt = [3 + 7 * i % 290 for i in range(60)]
    with LLM(folder, **OPTIONS) as llm:
        assert not llm.llm_engine.model_config.family.recurrent.keeps_chunks, "floats go token by token"
        [[answer]] = generate(llm, greedy, [prompt])
        turn = [*prompt, *answer, *range(5, 25)]
        cached = generate(llm, greedy, [turn])
        assert llm.llm_engine.stats().prefix_cache_hits_total == 56, "what lies behind the prompt's last full block"
    with LLM(folder, **OPTIONS, enable_prefix_caching=False) as llm:
        assert generate(llm, greedy, [turn]) == cached


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_states_are_exact_in_a_cache_of_any_type(folder, kv_cache_dtype):
    """They are float32 wherever they lie: the first tokens, which hardly depend on the keys' rounding, are the same."""
    greedy = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    found = []
    for options in ({}, {"kv_cache_dtype": kv_cache_dtype}):
        with LLM(folder, **OPTIONS, **options) as llm:
            found.append(generate(llm, greedy))
    same = sum(a == b for [a], [b] in zip(*found, strict=True))
    assert same >= 3


INVARIANT = {
    "Qwen3_5": {"head_dim": 16, "linear_key_head_dim": 32, "linear_value_head_dim": 16},
    "FalconH1": {"head_dim": 16, "mamba_d_state": 32, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
    "KimiLinear": {"linear_head_dim": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
                   "v_head_dim": 16},
}  # fmt: skip
"""States of whole tiles."""


@pytest.mark.skipif(absence() is not None, reason="the native ops are not built here")
@pytest.mark.parametrize("family", INVARIANT)
def test_the_bits_follow_no_batch_and_no_chunks(tmp_path, family):
    """Alone, together, in chunks, and from the states of the prefix cache."""
    options = ENGINE_SIZES | {"hidden_size": 64} | CASES[family].engine | INVARIANT[family]
    random_model(family, options).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
    prompts, found = random_prompts(4, 60), []
    may_promise = family != "KimiLinear"  # of more than 256 rows, products of its latents would be torch's
    options = OPTIONS | {"dtype": "bfloat16", "batch_invariant": may_promise, "max_num_batched_tokens": 23}
    with LLM(str(tmp_path), **options) as llm:
        for batch in (*([prompt] for prompt in prompts), prompts, prompts[::-1]):
            outputs = llm.generate(batch, params, use_tqdm=False)
            found.append([(o.outputs[0].token_ids, o.outputs[0].cumulative_logprob) for o in outputs])
    alone = [output for [output] in found[:4]]
    assert found[4] == alone and found[5] == alone[::-1]


def test_batch_invariance_is_refused_of_torch():
    with pytest.raises(UnsupportedError, match="sums of recurrent layers follow the chunks of a prompt in torch_cpu"):
        require_batch_invariance(TORCH_CPU_OPS, "float32", "float32", 16, has_states=True)
