"""Every kernel at production shapes against float32 on the device, twice with equal bits: a row of `gpu_check.py`.

Run by itself: `python bench/gpu_check.py --only kernels`.
"""

import multiprocessing
import multiprocessing.connection
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpu_parts.case.attention import AttentionCase, all_cases, expected_of, new_step, worst_row
from gpu_parts.case.draw import DrawCase, all_draws, check_draw, num_runs
from gpu_parts.case.rows import row_cases
from gpu_parts.line import Lines

BOUNDS = {torch.bfloat16: 8e-3, torch.float16: 1.5e-3, torch.float32: 1e-5}
"""Of the worst row and head, by the type of the results: three to four times what rounding weights and results costs
(2.6e-3 and 3.4e-4). One of 8,192 keys left out is 1e-2 of a row and more."""

ROW_BOUND = 6e-3
"""Of what is rounded to bfloat16 twice: norms, and rotated heads."""


def check_attention(case: AttentionCase, device: torch.device) -> dict[str, float]:
    """Raises AssertionError. Returns the error, its bound, and into how many parts contexts were cut."""
    from lullm.ops.triton import attention, decode_attention, prefill_attention, tile
    from lullm.ops.triton.decode_attention import MAX_NUM_KV_HEADS

    step = new_step(case, device)
    prepared = step.prepared(MAX_NUM_KV_HEADS)
    run = attention.invariant_attention if case.is_invariant else attention.attention
    found = [run(step.q, step.cache, prepared, step.scores) for _ in range(num_runs(device))]
    assert torch.equal(found[0], found[-1]), "other bits in a second run"
    assert not prepared.semaphores.any(), "semaphores are not as they were found"
    error, bound = worst_row(found[0], expected_of(step)), BOUNDS[case.dtype]
    assert error <= bound, f"error {error:.1e}, bound {bound:.0e}"
    kind, heads = (step.cache.key.dtype, case.head_size), case.heads
    decode = tile.decode_tile(*kind)
    parts = {
        "decode_parts": decode_attention.num_splits(prepared.num_spans, heads[1], prepared.max_context_len, decode),
        "prefill_parts": prefill_attention.num_prefill_splits(prepared, *heads, kind[1], tile.prefill_tile(*kind)),
    }
    return {"error": error, "bound": bound, **({} if case.is_invariant else parts)}


def grouped(cases: Sequence[AttentionCase]) -> list[list[AttentionCase]]:
    """By what they compile, in the order of the first of each."""
    groups: dict[str, list[AttentionCase]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    return list(groups.values())


Check = tuple[str, Callable[[torch.device], dict[str, Any]]]


def all_checks(is_small: bool = False) -> list[list[Check]]:
    """(name, what checks it) of every case, by groups; a group is for one process."""
    groups = [[_attention(case, is_small) for case in group] for group in grouped(all_cases())]
    groups.insert(1, [_draw(case, is_small) for case in all_draws()])
    groups.insert(2, _rows(32 if is_small else 1))
    return groups


def _attention(case: AttentionCase, is_small: bool) -> Check:
    return case.name, lambda device: check_attention(case.small() if is_small else case, device)


def _draw(case: DrawCase, is_small: bool) -> Check:
    from lullm.ops.triton.draw.tokens import draw_tokens

    return case.name, lambda device: check_draw(case.small() if is_small else case, device, draw_tokens)


def _rows(shrink: int) -> list[Check]:
    def check(name: str, device: torch.device) -> dict[str, Any]:
        error, bound = row_cases(device, shrink)[name](), ROW_BOUND if shrink == 1 else 1e-5
        assert error <= bound, f"error {error:.1e}, bound {bound:.0e}"
        return {"error": error, "bound": bound}

    names = row_cases(torch.device("cpu"), shrink)
    return [(name, lambda device, name=name: check(name, device)) for name in names]


def run(lines: Lines, num_processes: int = 6) -> None:
    """As a row of `gpu_check.py`: a process for each group, several at a time, since most of the time is compiling.

    A fault breaks the device for its process alone; another one goes on behind the case that had it.
    """
    waiting = all_checks()
    lines.plan([name for group in waiting for name, _ in group])
    running: dict[int, tuple[Any, list[Check], Any]] = {}
    forks = multiprocessing.get_context("fork")  # torch and Triton are loaded once, and the device is not in use yet
    while waiting or running:
        while waiting and len(running) < num_processes:
            group, at = waiting.pop(0), forks.Value("i", 0)
            process = forks.Process(target=run_group, args=(lines, group, at))
            process.start()
            running[process.sentinel] = process, group, at
        for sentinel in multiprocessing.connection.wait(list(running)):
            process, group, at = running.pop(sentinel)
            process.join()
            if process.exitcode == 0:
                continue
            if process.exitcode < 0:  # it could not say so itself
                lines.failed(group[at.value][0], f"ended by signal {-process.exitcode}")
            if group[at.value + 1 :]:
                waiting.insert(0, group[at.value + 1 :])


def run_group(lines: Lines, group: list[Check], at: Any) -> None:
    """Exit status 1: the device is broken for this process."""
    from lullm.ops.triton.device import launch_device

    for at.value, (name, check) in enumerate(group):
        with lines.case(name) as figures, torch.inference_mode():
            figures |= check(launch_device())
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
