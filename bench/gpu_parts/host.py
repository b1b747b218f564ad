"""What the host's part of a step costs: each call of a launch by itself, then steps that are not recorded.

Of a step: its time, the process's own time and the system's, how often it waited, and the functions that take the most.
So a slow step shows whether the host computes, is in the driver, or waits.
"""

import cProfile
import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import gpu_kernels
from engine_part import compiled_launch_of
from gpu import build

from gpu_parts.line import Lines
from gpu_parts.profile import add, filled

NUM_CALLS = 200
"""Fewer than a stream takes before the host has to wait."""
LOOPS = 1_000_000
SIZE = 1024
ROWS = 63
BUSY_CYCLES = 40_000_000
"""About 20 ms."""
DECODES = (1, 8)
NUM_STEPS = 20
MIXED_TOKENS = 2048
MOST_FUNCTIONS = 16


def run(lines: Lines) -> None:
    import torch

    steps = [f"eager decode, {rows} rows" for rows in DECODES]
    lines.plan(["calls", "launches", "launches behind work", *steps, "mixed step"])
    with torch.inference_mode():
        works = dict(launches())
        with lines.case("calls") as figures:
            figures |= {"python_loop_us": loop_us()}
            figures |= {f"{name}_us": enqueued_us(call) for name, call in calls()}
        with lines.case("launches") as figures:
            figures |= {f"{name}_us": enqueued_us(work) for name, work in works.items()}
            figures |= {"own_without_overlap_us": without_overlap(lambda: enqueued_us(works["own_norm"]))}
        with lines.case("launches behind work") as figures:
            figures |= {f"{name}_us": enqueued_us(work, BUSY_CYCLES) for name, work in works.items()}
    options = {"max_num_seqs": max(DECODES), "kv_cache_memory_bytes": 4 * gpu_kernels.SIZES.kv_bytes}
    llm = build("0.6b", max_num_batched_tokens=MIXED_TOKENS, enforce_eager=True, **options)
    for rows, name in zip(DECODES, steps, strict=True):
        with lines.case(name) as figures, filled(llm.llm_engine, rows):
            figures |= steps_of(llm.llm_engine, NUM_STEPS)
    with lines.case("mixed step") as figures, filled(llm.llm_engine, max(DECODES)):
        for name in ("cold", "warm"):
            add(llm.llm_engine, name, MIXED_TOKENS - max(DECODES), 2)
            figures |= {f"{name}_{key}": value for key, value in usage(llm.llm_engine.step, 1).items()}
            for _ in range(3):
                llm.llm_engine.step()
        add(llm.llm_engine, "profiled", MIXED_TOKENS - max(DECODES), 2)
        figures |= functions_of(llm.llm_engine.step, 1)
    llm.shutdown()


def loop_us() -> float:
    """Of a turn of an empty loop: how fast the host's Python is."""
    started = time.perf_counter()
    for _ in range(LOOPS):
        pass
    return 1e6 * (time.perf_counter() - started) / LOOPS


def calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """What a launch asks for before it reaches the driver."""
    import torch
    import triton

    from lullm.ops.triton.device import IS_INTERPRETED

    x = torch.empty(SIZE, device="cuda")
    yield "current_device", torch.cuda.current_device
    if not IS_INTERPRETED:
        yield "current_stream", lambda: triton.runtime.driver.active.get_current_stream(0)
    yield "hook", lambda: triton.knobs.runtime.launch_enter_hook.calls
    yield "address", x.data_ptr
    yield "empty", lambda: torch.empty((ROWS, SIZE), device=x.device)


def launches() -> Iterator[tuple[str, Callable[[], object]]]:
    """Operations of torch, ops of lullm, and the last call of one of them alone."""
    import torch
    from torch.nn import functional as F

    from lullm.ops.triton import elementwise
    from lullm.ops.triton.product import few_rows

    x, other, weight = (
        torch.zeros(*dims, device="cuda", dtype=torch.bfloat16) for dims in ((ROWS, SIZE), (ROWS, SIZE), (SIZE, SIZE))
    )
    event, sent = torch.cuda.Event(), torch.empty(SIZE, pin_memory=True)
    target = torch.empty(SIZE, device="cuda")
    yield "torch_add", lambda: x.add_(1.0)
    yield "torch_linear", lambda: F.linear(x, weight)
    yield "torch_copy", lambda: target.copy_(sent, non_blocking=True)
    yield "event", event.record
    yield "own_product", lambda: few_rows.product(x[:1], weight, None)
    yield "own_norm", lambda: elementwise.add_rms_norm(x, other, weight[0], 1e-6)
    elementwise.add_rms_norm(x, other, weight[0], 1e-6)
    yield "compiled_norm", compiled_launch_of(elementwise.RMS_NORM, ROWS, (x, x, other, weight[0], 1e-6, SIZE))


def without_overlap(measure: Callable[[], float]) -> float:
    from lullm.ops.triton import overlap

    with mock.patch.dict(os.environ, {overlap.VARIABLE: "0"}):
        overlap._options.cache_clear()
        found = measure()
    overlap._options.cache_clear()
    return found


def enqueued_us(work: Callable[[], object], busy_cycles: int = 0) -> float:
    """Microseconds of the host for a call. `busy_cycles`: the device works on something else meanwhile."""
    import torch

    work()
    torch.cuda.synchronize()
    if busy_cycles:
        torch.cuda._sleep(busy_cycles)
    started = time.perf_counter()
    for _ in range(NUM_CALLS):
        work()
    seconds = time.perf_counter() - started
    torch.cuda.synchronize()
    return 1e6 * seconds / NUM_CALLS


def steps_of(engine: Any, num_steps: int) -> dict[str, Any]:
    for _ in range(3):
        engine.step()
    return usage(engine.step, num_steps) | functions_of(engine.step, num_steps)


def usage(step: Callable[[], object], num_steps: int) -> dict[str, float]:
    """By step: milliseconds, those of the process in its own code and in the system, and how often it waited."""
    import torch

    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(num_steps):
        step()
    torch.cuda.synchronize()
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "step_ms": 1e3 * seconds / num_steps,
        "own_ms": 1e3 * (after.ru_utime - before.ru_utime) / num_steps,
        "system_ms": 1e3 * (after.ru_stime - before.ru_stime) / num_steps,
        "waits": (after.ru_nvcsw - before.ru_nvcsw) / num_steps,
        "page_faults": (after.ru_minflt - before.ru_minflt) / num_steps,
    }


def functions_of(step: Callable[[], object], num_steps: int) -> dict[str, Any]:
    """Microseconds of a step by function, without those that it calls; Python's profiler makes all of them slower."""
    profile = cProfile.Profile()
    with profile:
        for _ in range(num_steps):
            step()
    longest = sorted(profile.getstats(), key=lambda entry: -entry.inlinetime)[:MOST_FUNCTIONS]
    return {
        "us_by_function": {
            f"{name_of(entry.code)} x {entry.callcount / num_steps:g}": round(1e6 * entry.inlinetime / num_steps, 1)
            for entry in longest
        }
    }


def name_of(code: Any) -> str:
    """Of a function of Python, with its place; or what the profiler says of another."""
    if isinstance(code, str):
        return code
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} {code.co_qualname}"
