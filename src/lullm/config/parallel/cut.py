"""Where a model's layers may be cut into the stages of a pipeline, and the layers of each stage."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.errors import ConfigError, UnsupportedError
from lullm.types.layer_kind import SharedAttention
from lullm.types.parallel.stage import PipelineStage

_DIGITS = 10
"""No model has so many layers; Python refuses to read thousands of digits as a number."""


def on_stage(model: ModelConfig, config: ResolvedConfig, rank: int = 0) -> ModelConfig:
    """The model of a worker on this stage. For a scheduler all stages' blocks are alike."""
    return replace(model, stage=PipelineStage(rank, config.pipeline_layers))


def parse_pipeline_layers(text: str | None, num_stages: int) -> tuple[int, ...]:
    """`'10,12'` -> (10, 12); None: (). Raises ConfigError: it does not give every stage a number of layers."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != num_stages or not all(part.isdecimal() and len(part) < _DIGITS and int(part) for part in parts):
        raise ConfigError(
            f"pipeline_layers={text[:80]!r} must say how many layers each stage has, at least one, like 10,12; there "
            f"are as many stages as pipeline_parallel_size={num_stages}"
        )
    return tuple(map(int, parts))


def check_stages(layers: str | None, num_stages: int, is_ahead: bool) -> None:
    """Check that the options go together. Raises ConfigError otherwise. `is_ahead`: with async_scheduling."""
    parse_pipeline_layers(layers, num_stages)
    if is_ahead and num_stages > 1:
        raise ConfigError(
            "async_scheduling is for one stage: with pipeline_parallel_size above 1 as many steps run at a time as "
            "there are stages, each with other sequences; leave it out"
        )


def check_cut(model: ModelConfig, num_layers: Sequence[int]) -> None:
    """Check that the model can be cut into stages of these lengths. Raises ConfigError otherwise."""
    if sum(num_layers) != model.num_hidden_layers:
        raise ConfigError(
            f"pipeline_layers={_shown(num_layers)} are {sum(num_layers)} layers; the model has "
            f"{model.num_hidden_layers}"
        )
    allowed = first_layers(model)
    wrong = [first for first in list(accumulate(num_layers))[:-1] if first not in allowed]
    if wrong:
        raise ConfigError(
            f"pipeline_layers={_shown(num_layers)}: no stage can begin with layer {wrong[0]} of {model.architecture}, "
            f"since layers behind it share the keys and values of one before it; stages can begin with layers up to "
            f"{max(allowed)}"
        )


def first_layers(model: ModelConfig) -> list[int]:
    """The layers that a stage can begin with: from there on no layer reads the cache of a layer before.

    Raises:
        UnsupportedError: the model cannot be cut.
    """
    if model.foreign is not None:
        raise UnsupportedError(
            f"pipeline_parallel_size is not there for {model.architecture}, which is computed by transformers; choose "
            "an architecture that lullm computes itself"
        )
    num_each = model.family.kinds_per_layer
    sources = [
        (layer // num_each, kind.layer // num_each)
        for layer, kind in enumerate(model.layer_kinds)
        if isinstance(kind, SharedAttention)
    ]
    return [
        first
        for first in range(model.num_hidden_layers)
        if not any(source < first <= layer for layer, source in sources)
    ]


def _shown(num_layers: Sequence[int]) -> str:
    return ",".join(map(str, num_layers))
