"""Scenes that many kinds of prompts play: asleep in the middle, preempted, compared with the golden reference."""

import itertools

import pytest
from kit.engine.parts import block_space_of, executor_of, runner_of

WAYS = {
    "whole": {},
    "chunks": {"max_num_batched_tokens": 16, "max_num_seqs": 4},
    "bare": {"enable_prefix_caching": False, "enforce_eager": True, "block_size": 16},
}
"""Options that change how prompts are computed, and no token."""
GUESSING = {"guesses": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}}
PREFILL_FIRST = {"prefill first": {"enable_chunked_prefill": False, "max_num_batched_tokens": 512}}


def check_golden(outputs, expected):
    """Prompts, tokens and log-probabilities are those of transformers, for each output."""
    for output, (ids, tokens, logprobs) in zip(outputs, expected, strict=True):
        assert output.prompt_token_ids == ids
        assert list(output.outputs[0].token_ids) == tokens
        drawn = [row[token].logprob for row, token in zip(output.outputs[0].logprobs, tokens, strict=True)]
        assert drawn == pytest.approx(logprobs, abs=1e-4)


def check_preempted(llm):
    """Some groups were preempted, and all blocks are back."""
    assert sum(llm.llm_engine.stats().preemptions_total.values()) > 0
    block_space_of(llm).check_conservation()


def golden_preempted(open_llm, prompts, params, expected, spare=12):
    """All prompts twice, in blocks for the prompts and few tokens behind: some are computed again, or swapped out.

    `open_llm(**options)` opens the engine. `spare`: blocks more than half of the tokens fill, as layers with windows or
    states need.
    """
    lengths = [len(ids) for ids, *_ in expected]
    for mode in ("recompute", "swap"):
        with open_llm(
            num_gpu_blocks_override=sum(lengths) // 2 + spare, block_size=2, max_model_len=max(lengths) + 16,
            max_num_batched_tokens=24, max_num_seqs=8, preemption_mode=mode,
        ) as llm:  # fmt: skip
            check_golden(llm.generate(prompts * 2, params, use_tqdm=False), expected * 2)
            check_preempted(llm)


def tiles_sent(llm):
    """The digests of all tiles that plans send from now on, and those that they drop."""
    sent, dropped = [], []
    launch = executor_of(llm).launch_model

    def watch(plan):
        sent.extend(tile.digest for tile in plan.tiles)
        dropped.extend(plan.tiles_to_drop)
        return launch(plan)

    executor_of(llm).launch_model = watch
    return sent, dropped


def asleep_meanwhile(llm, prompts, params, *calls, look=lambda: None):
    """The outputs of these prompts, over a sleep after every third step: `calls` in turn. `look` is called in each."""
    engine, ended, num_steps = llm.llm_engine, {}, 0
    calls = itertools.cycle(calls)
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt, params)
    while engine.has_unfinished_requests():
        ended |= {output.request_id: output for output in engine.step() if output.finished}
        num_steps += 1
        if num_steps % 3 == 0 and num_steps < 20:
            llm.sleep(mode="keep", **next(calls))
            look()
            llm.wake_up()
    return [ended[key] for key in sorted(ended)]


def see_no_rows(llm):
    """A `look` at a worker that has forgotten the rows of tiles."""

    def look():
        assert not runner_of(llm)._tiles._rows

    return look
