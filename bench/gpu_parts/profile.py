"""Where the time of a step goes: kernels, the gaps between them, and what the host does meanwhile."""

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from engine_part import host_stages_of
from gpu import build

from gpu_parts.line import Lines

ROWS = (1, 32, 256)
NUM_STEPS = 20
CONTEXT_LEN = 256
MIXED_TOKENS = 2048
MOST_KERNELS = 14
"""Of a step, those that take the longest are written."""


def run(lines: Lines) -> None:
    lines.plan(["ready", *(f"decode, {rows} rows" for rows in ROWS), f"mixed, {MIXED_TOKENS} tokens"])
    with lines.case("ready") as figures:
        started = time.perf_counter()
        llm = build("0.6b", max_num_seqs=max(ROWS), max_num_batched_tokens=max(MIXED_TOKENS, 512))
        figures["seconds"] = time.perf_counter() - started
    engine = llm.llm_engine
    for rows in ROWS:
        with lines.case(f"decode, {rows} rows") as figures, filled(engine, rows):
            figures |= measure(llm, NUM_STEPS)
    with lines.case(f"mixed, {MIXED_TOKENS} tokens") as figures, filled(engine, min(8, max(ROWS))):
        for name in ("cold", "warm"):
            add(engine, name, MIXED_TOKENS - 8, 2)
            figures |= {f"{name}_{key}": value for key, value in plain(llm, 1).items()}
            for _ in range(3):
                engine.step()
        add(engine, "profiled", MIXED_TOKENS - 8, 2)
        figures |= profiled(engine, 1)
    llm.shutdown()


def add(engine: Any, name: str, num_tokens: int, output_len: int) -> None:
    from lullm import SamplingParams

    params = SamplingParams(temperature=0.8, max_tokens=output_len, ignore_eos=True)
    engine.add_request(name, [(7 * i) % 300 + 10 for i in range(num_tokens)], params)


@contextlib.contextmanager
def filled(engine: Any, rows: int) -> Iterator[None]:
    """So many sequences decode meanwhile."""
    try:
        for number in range(rows):
            add(engine, str(number), CONTEXT_LEN, 8 * NUM_STEPS)
        while len(engine.step()) < rows:
            pass
        yield
    finally:
        for name in engine.unfinished_request_ids():
            engine.abort_request(name)
        while engine.has_unfinished_requests():
            engine.step()


def measure(llm: Any, num_steps: int) -> dict[str, Any]:
    """Steps without the profiler, for their time and the host's; then as many with it."""
    for _ in range(3):
        llm.llm_engine.step()
    return plain(llm, num_steps) | profiled(llm.llm_engine, num_steps)


def plain(llm: Any, num_steps: int) -> dict[str, float]:
    """Microseconds of a step, and of each stage on the host; what is left is waiting, and outputs."""
    with timed_stages(llm) as stages:
        started = time.perf_counter()
        for _ in range(num_steps):
            llm.llm_engine.step()
        seconds = time.perf_counter() - started
    figures = {f"host_{name}_us": 1e6 * sum(found) / num_steps for name, found in stages.items()}
    return {"step_us": 1e6 * seconds / num_steps, **figures}


@contextlib.contextmanager
def timed_stages(llm: Any) -> Iterator[dict[str, list[float]]]:
    """Seconds of every call of a stage of the host's."""
    found: dict[str, list[float]] = defaultdict(list)
    with contextlib.ExitStack() as undo:
        for name, (owner, function) in host_stages_of(llm).items():
            undo.enter_context(_timed(owner, function, found[name]))
        yield found


@contextlib.contextmanager
def _timed(owner: Any, name: str, seconds: list[float]) -> Iterator[None]:
    original = getattr(owner, name)

    def timed(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return original(*args, **options)
        finally:
            seconds.append(time.perf_counter() - started)

    setattr(owner, name, timed)
    try:
        yield
    finally:
        delattr(owner, name)  # what stands on the instance; the class has its own


def profiled(engine: Any, num_steps: int) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity

    is_known = ProfilerActivity.CUDA in torch.profiler.supported_activities()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA if is_known else ProfilerActivity.CPU]) as profile:
        for _ in range(num_steps):
            engine.step()
        torch.cuda.synchronize()
    events = [
        (event.name, event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    return summary(events, num_steps)


def summary(events: Sequence[tuple[str, float, float]], num_steps: int) -> dict[str, Any]:
    """Of (name, start, end) in microseconds: the share of time in which the device works, the median gap between two
    that follow each other, kernels per step, and microseconds per step by kernel."""
    if not events:
        return {"device_events": 0}
    ordered = sorted(events, key=lambda event: event[1])
    busy, ends, gaps = 0.0, ordered[0][1], []
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, start, end in ordered:
        if start > ends:
            gaps.append(start - ends)
        busy += max(0.0, end - max(start, ends))
        ends = max(ends, end)
        by_name[name[:60]].append(end - start)
    longest = sorted(by_name, key=lambda name: -sum(by_name[name]))[:MOST_KERNELS]
    return {
        "device_events": len(events) / num_steps,
        "busy_share": busy / (ends - ordered[0][1]),
        "busy_us": busy / num_steps,
        "median_gap_us": statistics.median(gaps) if gaps else 0.0,
        "us_by_kernel": {name: round(sum(by_name[name]) / num_steps, 1) for name in longest},
    }
