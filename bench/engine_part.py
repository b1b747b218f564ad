"""The private parts of an engine that benches measure: the one file that knows where they are."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from lullm import LLM
from lullm.worker import loaded_model as builder


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


@contextlib.contextmanager
def quantized_by(quantize: Callable[[Any, str], None]) -> Iterator[None]:
    """For a while, `quantize(model, quantization)` chooses which weights of a new engine are quantized."""
    original = builder.quantize_model
    builder.quantize_model = quantize
    try:
        yield
    finally:
        builder.quantize_model = original
