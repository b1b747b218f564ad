"""A thinking budget through the whole engine: it holds, and no disturbance changes a token."""

import pytest

from lullm import LLM, SamplingParams
from lullm.config.engine import EngineConfig
from lullm.engine.llm_engine import LLMEngine
from lullm.errors import InvalidRequestError
from lullm.text.reply.reader import open_reader
from lullm.text.reply.whole import joined
from lullm.types.guided.params import StructuredOutputsParams
from lullm.types.request import CallerRequest, Conversation

THINKER = {"model": "demo", "max_model_len": 256, "reasoning_parser": "deepseek_r1"}


def ask(i):
    return Conversation([{"role": "user", "content": f"What is {i} + {i}?"}])


def run(disturb=lambda engine, number: None, **options):
    """Requests with and without a budget; of each completion its tokens, its thought and its text."""
    engine = LLMEngine(EngineConfig.from_options(THINKER | options))
    requests, found, number = {}, {}, 0
    for i in range(16):
        form = (
            {"structured_outputs": StructuredOutputsParams(choice=["yes", "no"])} if i % 4 == 3 else {"min_tokens": 30}
        )
        params = SamplingParams(temperature=i % 2, seed=i, n=1 + i % 3, max_tokens=60, **budget_of(i), **form)
        requests[f"r{i}"] = engine.input_processor.process(CallerRequest(f"r{i}", ask(i), params))
        engine.add_processed(requests[f"r{i}"])
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                found[output.request_id] = [read(requests[output.request_id], each) for each in output.outputs]
        number += 1
        disturb(engine, number)
    engine.shutdown()
    return found


def budget_of(i):
    return {} if i % 4 == 0 else {"thinking_token_budget": i}


def read(request, completion):
    reader = open_reader(request)
    reply = joined(reader.feed(completion.text, completion.token_ids) + reader.finish())
    return completion.token_ids, completion.finish_reason, reader.num_thinking_tokens, reply.thinking, reply.text


def sleep_and_wake(engine, number):
    if number % 10 == 0 and engine.has_unfinished_requests():
        engine.sleep(level=1 + number % 20 // 10, mode="keep")
        engine.wake_up()


@pytest.fixture(scope="module")
def undisturbed():
    return run()


def test_the_budget_holds(undisturbed):
    """Greedy and drawn, n of 1 to 3; the form of the answer holds behind it."""
    for i in range(16):
        for token_ids, _, num_thinking, _, text in undisturbed[f"r{i}"]:
            if i % 4 == 0:  # the demo model knows no marks, so it thinks to the end
                assert num_thinking == len(token_ids) and not text
            else:
                assert num_thinking == i
            if i % 4 == 3:
                assert text in ("yes", "no")
            assert i % 4 == 0 or text


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 64, "max_num_seqs": 8},
        {"num_gpu_blocks_override": 24, "block_size": 16, "enable_prefix_caching": False},
        {"num_gpu_blocks_override": 24, "block_size": 16, "preemption_mode": "swap", "swap_space": 0.1},
    ],
)
def test_no_disturbance_changes_a_token(undisturbed, options):
    """Chunks, waiting, preemption by recomputing and by swapping, sleeps."""
    assert run(sleep_and_wake, enable_sleep_mode=True, **options) == undisturbed


def test_refused():
    with LLM("demo", max_model_len=256) as llm:
        params = SamplingParams(thinking_token_budget=3)
        for prompt in ("Hello", ask(1)):
            with pytest.raises(InvalidRequestError, match="reasoning_parser"):
                llm.llm_engine.input_processor.process(CallerRequest("r", prompt, params))
    with pytest.raises(InvalidRequestError, match="beam search"):
        SamplingParams(thinking_token_budget=3, beam_width=2)
    assert SamplingParams(thinking_token_budget=-1).thinking_token_budget is None
