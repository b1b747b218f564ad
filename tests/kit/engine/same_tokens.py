"""What workers that share a model must not change: the tokens, over a sleep, new weights and recorded steps, too."""

import contextlib

import pytest
from kit.folder.checkpoint import write_checkpoint
from kit.model.decisive import decisive_tokens
from safetensors.torch import load_file

from lullm import LLM, SamplingParams


@contextlib.contextmanager
def engines(folder, options):
    """`open_engine(folder, **options)`: engines with these options unless it says others, until the block ends."""
    with contextlib.ExitStack() as stack:
        yield lambda folder=folder, **others: stack.enter_context(LLM(str(folder), **options | others))


def tokens_of(outputs):
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def check_equal(llm, answers, max_tokens=24):
    """`answers`: prompts and their greedy tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    found = tokens_of(llm.generate(list(answers), params, use_tqdm=False))
    assert found == [[expected] for expected in answers.values()]


def check_continued(starts, outputs, expected):
    """Tokens and log-probabilities behind these prompts, which outputs have in turn."""
    for number, (output, (tokens, logprobs)) in enumerate(zip(outputs, expected, strict=True)):
        assert output.prompt_token_ids == starts[number % len(starts)]
        assert list(output.outputs[0].token_ids) == tokens
        drawn = [row[token].logprob for row, token in zip(output.outputs[0].logprobs, tokens, strict=True)]
        assert drawn == pytest.approx(logprobs, abs=1e-4)


def check_sleep_in_the_middle(llm, answers, level):
    """Running requests go on behind it, and weights that are read again are the same."""
    engine, found = llm.llm_engine, {}
    for prompt in answers:
        engine.add_request(prompt, prompt, SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True))
    for step in range(200):
        if step == 7:
            engine.sleep(level=level, mode="keep")
            engine.wake_up()
        for output in engine.step():
            found[output.request_id] = output.outputs[0].token_ids
        if not engine.has_unfinished_requests():
            break
    assert found == answers
    llm.collective_rpc("reload_weights")
    check_equal(llm, answers)


def check_new_weights(llm, folder, **options):
    """Whole tensors of another checkpoint come, and stay behind a sleep that has saved them. Gives the tensors."""
    other = write_checkpoint(folder, "qwen3", initializer_range=0.25)
    expected = decisive_tokens(other, 4, 24, **options)
    tensors = load_file(other / "model.safetensors")
    assert llm.update_weights(iter(tensors.items())) == len(tensors)
    check_equal(llm, expected)
    llm.sleep(level=1)
    llm.wake_up()
    check_equal(llm, expected)
    return tensors


def check_recordings(open_engine, answers):
    """Replays have the tokens and the bits of eager steps."""
    found = []
    for enforce_eager in (False, True):
        llm = open_engine(enforce_eager=enforce_eager)
        check_equal(llm, answers)
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
        completions = [output.outputs[0] for output in llm.generate(list(answers)[:2], params, use_tqdm=False)]
        found.append([[entry.logprob for at in each.logprobs for entry in at.values()] for each in completions])
        for worker in llm.llm_engine.model_executor.workers:
            graphs = worker.model_runner.graphs
            assert graphs.refusal is None and bool(graphs.sizes) != enforce_eager, graphs.refusal
    assert found[0] == found[1]
