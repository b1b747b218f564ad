"""An engine of the 0.6B shape in bfloat16: whatever is switched on or off, tokens and log-probabilities stay the same.

With `batch_invariant`, so that the comparison is of bits, though batches and chunks differ. Graphs against eager steps
is once more done without it, one request at a time.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from engine_part import device_of
from gpu import build

from gpu_parts.line import Lines

OPTIONS: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "num_gpu_blocks_override": 600}
INVARIANT = {"batch_invariant": True}
FEW_BLOCKS = {"num_gpu_blocks_override": 18, "max_model_len": 256, "preemption_mode": "swap", "swap_space": 0.25}
"""312 tokens of prompts and 96 more do not fit into 18 blocks."""

DELAY_CYCLES = 10_000_000
"""About 5 ms, by which a step is late: what the host overwrites too early is then read."""
NUM_TOKENS = 24
CHUNK = 48
PROMPT_LENS = (40, 7, 200, 65)


def prompts() -> list[list[int]]:
    return [[(7 * i + 3 * n) % 200 + 10 for i in range(length)] for n, length in enumerate(PROMPT_LENS)]


@contextlib.contextmanager
def engine(**options: Any) -> Iterator[Any]:
    llm = build("0.6b", **{**OPTIONS, **options})
    try:
        yield llm
    finally:
        llm.shutdown()


def answers(llm: Any, one_by_one: bool = False) -> list[Any]:
    """Tokens and their log-probabilities, of greedy and of drawn requests."""
    from lullm import SamplingParams

    kinds = ({"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.9}, {"temperature": 0.8, "top_k": 20}, {})
    params = [SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=n, **kind) for n, kind in enumerate(kinds)]
    pairs = list(zip(prompts(), params, strict=True))
    if one_by_one:
        outputs = [llm.generate([prompt], [param], use_tqdm=False)[0] for prompt, param in pairs]
    else:
        outputs = llm.generate([p for p, _ in pairs], [q for _, q in pairs], use_tqdm=False)
    return [(output.outputs[0].token_ids, output.outputs[0].cumulative_logprob) for output in outputs]


def same_bits(first: dict[str, Any], second: dict[str, Any], one_by_one: bool = False) -> dict[str, Any]:
    found = []
    for options in (first, second):
        with engine(**options) as llm:
            found.append(answers(llm, one_by_one))
    compare(*found)
    return {"tokens": sum(len(tokens) for tokens, _ in found[0])}


def compare(found: list[Any], expected: list[Any]) -> None:
    num = sum(a != b for a, b in zip(found, expected, strict=True))
    assert not num, f"{num} of {len(found)} answers differ"


def no_hidden_wait() -> dict[str, Any]:
    """Decode steps in which torch makes an error of every wait that is not asked for."""
    import torch

    from lullm import SamplingParams

    with engine() as llm:
        for number, prompt in enumerate(prompts()):
            llm.llm_engine.add_request(str(number), prompt, SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True))
        for _ in range(4):
            llm.llm_engine.step()
        torch.cuda.set_sync_debug_mode("error")
        num_steps = 0
        try:
            while llm.llm_engine.has_unfinished_requests():
                llm.llm_engine.step()
                num_steps += 1
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert num_steps > NUM_TOKENS // 2, num_steps
    return {"steps": num_steps}


def late_device() -> dict[str, Any]:
    """Two steps in flight share two buffers of pinned memory."""
    import torch

    with engine(async_scheduling=True) as llm:
        expected = answers(llm)
        device = device_of(llm)
        start = device.start

        def late(work: Callable[[], Any]) -> Any:
            def slept() -> Any:
                torch.cuda._sleep(DELAY_CYCLES)
                return work()

            return start(slept)

        device.start = late
        compare(answers(llm), expected)
    return {}


def prefix_hits() -> dict[str, Any]:
    with engine(**INVARIANT, enable_prefix_caching=True) as llm:
        first = answers(llm)
        compare(answers(llm), first)
        stats = llm.llm_engine.stats()
    assert stats.prefix_cache_hits_total > 0, "no prefix was found again"
    return {"queried": stats.prefix_cache_queries_total, "found": stats.prefix_cache_hits_total}


def swapped() -> dict[str, Any]:
    with engine(**INVARIANT) as llm:
        expected = answers(llm)
    with engine(**INVARIANT, **FEW_BLOCKS) as llm:
        compare(answers(llm), expected)
        num_preemptions = sum(llm.llm_engine.stats().preemptions_total.values())
    assert num_preemptions > 0, "nothing was swapped"
    return {"preemptions": num_preemptions}


def sleeps() -> dict[str, Any]:
    import torch

    with engine(enable_sleep_mode=True) as llm:
        expected, released = answers(llm), []
        for level in (1, 1, 2):
            before = torch.cuda.mem_get_info()[0]
            llm.sleep(level=level)
            released.append(torch.cuda.mem_get_info()[0] - before)
            llm.wake_up()
            compare(answers(llm), expected)
    return {"released_bytes": released}


def without_overlap() -> dict[str, Any]:
    """Kernels that are launched while the one before ends, and the same one after the other."""
    from lullm.ops.triton import overlap

    found = []
    for value in ("1", "0"):
        with mock.patch.dict(os.environ, {overlap.VARIABLE: value}):
            overlap._options.cache_clear()
            with engine() as llm:
                found.append(answers(llm, one_by_one=True))
    overlap._options.cache_clear()
    compare(*found)
    return {}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "no hidden wait": no_hidden_wait,
    "graphs and eager": lambda: same_bits({}, {"enforce_eager": True}, one_by_one=True),
    "overlap": lambda: same_bits({"async_scheduling": True}, {"async_scheduling": False}, one_by_one=True),
    "a device that is late": late_device,
    "prefix hits": prefix_hits,
    "chunks": lambda: same_bits(INVARIANT, INVARIANT | {"max_num_batched_tokens": CHUNK}),
    "swap": swapped,
    "sleep": sleeps,
    "launches that overlap": without_overlap,
}


def run(lines: Lines) -> None:
    lines.plan(list(CASES))
    for name, case in CASES.items():
        with lines.case(name) as figures:
            figures |= case()
