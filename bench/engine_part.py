"""The private parts of an engine that benches measure: the one file that knows where they are."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from lullm import LLM
from lullm.arena.address_range import AddressRange
from lullm.arena.pinned import PinnedArena
from lullm.weights import storage


def _runner_of(llm: LLM) -> Any:
    engine: Any = llm.llm_engine
    return engine.model_executor.driver_worker.model_runner


def model_of(llm: LLM) -> Any:
    return _runner_of(llm).model


def captured_graphs_of(llm: LLM) -> dict[Any, Any]:
    """Recorded decodes of a GPU, by size."""
    return _runner_of(llm).graphs._captured


def recorded_sizes_of(llm: LLM) -> list[int]:
    """Of decodes."""
    return _runner_of(llm).graphs.sizes


def device_of(llm: LLM) -> Any:
    return _runner_of(llm)._device


def host_stages_of(llm: LLM) -> dict[str, tuple[Any, str]]:
    """What a step makes the host do: the owner and the name of each function."""
    engine: Any = llm.llm_engine
    runner = _runner_of(llm)
    return {
        "plan": (engine._scheduler, "plan"),
        "prepare": (runner._inputs, "prepare"),
        "launch": (runner._device, "start"),
        "apply": (engine._scheduler, "apply"),
    }


def compiled_launch_of(kernel: Any, num_programs: int, arguments: tuple[Any, ...]) -> Callable[[], None]:
    """The last part of a launch of a kernel that has run: what lullm's launcher (`ops/triton/launch.py`) calls."""
    import triton

    compiled = [found for found in kernel._compiled.values() if found]
    if not compiled:  # interpreted
        return lambda: None
    run, function, metadata, own = compiled[-1]
    _, values = kernel._bind(*arguments)
    stream = triton.runtime.driver.active.get_current_stream(0)
    return lambda: run(num_programs, 1, 1, stream, function, metadata, None, None, None, *values, *own)


@contextlib.contextmanager
def timed_parts() -> Iterator[dict[str, float]]:
    """Seconds that a sleep or a wake-up spends on memory: mapping, unmapping, and pinned memory. The rest is copying.

    By any thread: parts that run beside each other may be longer than the whole. What maps is a device's address range;
    a pinned arena has one of the host, which is a part of its pinning.
    """
    spent = {"map": 0.0, "unmap": 0.0, "pin": 0.0, "unpin": 0.0}

    def timed(work: Callable[..., Any], part: str) -> Callable[..., Any]:
        def run(memory: AddressRange | PinnedArena, *args: Any) -> Any:
            started = time.perf_counter()
            try:
                return work(memory, *args)
            finally:
                if isinstance(memory, PinnedArena) or not memory._backend.faults_in:
                    spent[part] += time.perf_counter() - started

        return run

    with contextlib.ExitStack() as undo:
        for owner, name, part in (
            (AddressRange, "map", "map"),
            (AddressRange, "release", "unmap"),
            (PinnedArena, "map", "pin"),
            (PinnedArena, "release", "unpin"),
            (PinnedArena, "__init__", "pin"),
        ):
            original = getattr(owner, name)
            setattr(owner, name, timed(original, part))
            undo.callback(setattr, owner, name, original)
        yield spent


@contextlib.contextmanager
def quantized_by(quantize: Callable[[Any, str], None]) -> Iterator[None]:
    """For a while, `quantize(model, quantization)` chooses which weights of a new engine are quantized."""
    original = storage.quantize_model
    storage.quantize_model = quantize
    try:
        yield
    finally:
        storage.quantize_model = original
