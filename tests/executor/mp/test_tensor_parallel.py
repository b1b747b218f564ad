"""Processes that share a model: the tokens of one worker, end to end."""

import pytest
from kit.engine.prompts import random_prompts
from kit.folder.checkpoint import write_checkpoint
from safetensors.torch import load_file

from lullm import LLM, SamplingParams

OPTIONS = {"dtype": "float32", "max_model_len": 128, "enable_sleep_mode": True, "num_gpu_blocks_override": 12}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.9, seed=3, max_tokens=12, ignore_eos=True, n=4, presence_penalty=0.5),
]
PROMPTS = random_prompts(6, 60)


def answers(llm):
    """With preemption, and a sleep in the middle."""
    engine = llm.llm_engine
    found = [llm.generate(PROMPTS, params, use_tqdm=False) for params in PARAMS]
    assert engine.stats().num_preemptions > 0
    engine.add_request("x", PROMPTS[0], PARAMS[0])
    for _ in range(4):
        engine.step()
    for level in (1, 2):
        llm.sleep(level=level, mode="keep", backup="ram")
        llm.wake_up()
        engine.step()
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return [completion.token_ids for each in [*found, outputs] for output in each for completion in output.outputs]


@pytest.fixture(scope="module")
def llm(qwen3_folder):
    with LLM(str(qwen3_folder), tensor_parallel_size=2, **OPTIONS) as llm:
        yield llm


def test_the_tokens_of_one_process(llm, qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as alone:
        expected = answers(alone)
    assert answers(llm) == expected


def test_weights_are_pushed_whole(llm, tmp_path):
    """Each process takes its share of what goes over the wire."""
    other = write_checkpoint(tmp_path, "qwen3", initializer_range=0.25)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with LLM(str(other), **OPTIONS) as alone:
        expected = [output.outputs[0].token_ids for output in alone.generate(PROMPTS, params, use_tqdm=False)]
    assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)] != expected
    assert llm.update_weights(iter(load_file(other / "model.safetensors").items())) > 0
    assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)] == expected
    assert llm.collective_rpc("reload_weights") == [None, None]
    llm.reload_weights(other)
    llm.sleep(2)
    llm.wake_up()
    assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)] == expected
