"""Workers that share the matrices give the tokens of one, whatever the engine does meanwhile. They live in threads."""

import pytest
from decisive import decisive_answers
from thread_workers import use_threads

from lullm import LLM, SamplingParams

OPTIONS = {"dtype": "float32", "max_model_len": 128, "block_size": 8}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def answers(qwen3_folder):
    """Prompts with their greedy tokens, by one worker."""
    found = decisive_answers(str(qwen3_folder), 6, 24, **OPTIONS)
    return {prompt: answer.token_ids for prompt, answer in found.items()}


@pytest.fixture
def shared(qwen3_folder, monkeypatch):
    """Makes an engine of two workers."""
    use_threads(monkeypatch)
    opened = []

    def open_shared(**options):
        llm = LLM(str(qwen3_folder), **{"tensor_parallel_size": 2} | OPTIONS | options)
        opened.append(llm)
        return llm

    yield open_shared
    for llm in opened:
        llm.shutdown()


def tokens_of(outputs):
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def check_equal(llm, answers):
    found = tokens_of(llm.generate(list(answers), GREEDY, use_tqdm=False))
    assert found == [[expected] for expected in answers.values()]


def test_each_worker_holds_half(shared, qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as alone:
        [whole] = alone.collective_rpc(lambda worker: dict(worker.loaded.model.named_parameters()))
        whole = {name: parameter.shape for name, parameter in whole.items()}
        [block] = alone.collective_rpc(lambda worker: worker.pools.block_bytes)
    llm = shared()
    for parameters in llm.collective_rpc(lambda worker: dict(worker.loaded.model.named_parameters())):
        for name, parameter in parameters.items():
            is_whole = "norm" in name or "embed" in name
            assert 2 * parameter.numel() == whole[name].numel() or is_whole, name
    assert llm.collective_rpc(lambda worker: 2 * worker.pools.block_bytes) == [block, block]
