"""The registry: builds the model of an architecture, by the row that `config.family.table` has of it."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Protocol

import torch

from lullm.config.family.dense import LLAMA
from lullm.config.family.family import Family
from lullm.config.family.table import ALL_STYLES, OUTSIDE
from lullm.config.model import ModelConfig, Share
from lullm.errors import ConfigError, UnsupportedError
from lullm.models.encoder.hearing import add_hearing
from lullm.models.protocol import Model
from lullm.models.vision.reader import add_vision
from lullm.weights.rows.cut import cuts_of
from lullm.weights.rule import without_experts

Builder = Callable[[ModelConfig, torch.dtype, int], Model]
"""(config, dtype, max_model_len) -> the model, its parameters on the meta device; see `build_model`."""


class Style(Protocol):
    """The differences of a family: a function (config) -> style of its module in `models.family` gives it."""

    def build(self, config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> Model:
        """The model, its parameters on the meta device; see `build_model`."""
        ...


_OUTSIDE_BUILDERS: dict[str, Builder] = {}


def register_model(architecture: str, builder: Builder, family: Family = LLAMA) -> None:
    """Register an architecture of another package. A second call for it replaces the first.

    An entry point of the group "lullm.models" calls this when a `config.json` first names its architecture.

    Args:
        architecture: its name in `architectures` of `config.json`.
        builder: (config, dtype, max_model_len) -> the model.
        family: reads the `config.json`; default: with Llama's keys.

    Raises:
        ConfigError: the architecture is one of lullm's own.
    """
    if architecture in ALL_STYLES:
        raise ConfigError(f"lullm has {architecture} itself; give your model's config.json another architecture")
    OUTSIDE[architecture] = family
    _OUTSIDE_BUILDERS[architecture] = builder


def builder_of(architecture: str) -> Builder:
    """The builder of a registered architecture. Loads the module of its family."""
    if architecture not in ALL_STYLES:
        return _OUTSIDE_BUILDERS[architecture]
    module, _, name = ALL_STYLES[architecture].partition(":")
    style_of: Callable[[ModelConfig], Style] = getattr(import_module(f"lullm.models.family.{module}"), name)
    return lambda config, dtype, max_model_len: style_of(config).build(config, dtype, max_model_len)


def build_model(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> Model:
    """The model of a config, its parameters of `dtype` on the meta device (see `weights.materialize`).

    `max_model_len` is the number of positions, in tokens, that the rotary table covers. For a worker's share, `rules`
    are those of the whole model, and `cuts` are the worker's parts.

    Raises:
        ModelLoadError: a family cannot be built with these sizes, or there is no memory for its tables.
            UnsupportedError: workers cannot share a model of another package.
    """
    if config.foreign is not None:
        from lullm.models.fallback.model import build_foreign  # loads transformers

        return build_foreign(config, dtype, max_model_len)
    builder = builder_of(config.architecture)
    with _without_collections():
        model = builder(config, dtype, max_model_len)
        if config.share is not None:
            _cut(model, config, config.share, lambda whole: builder(whole, dtype, max_model_len))
        add_vision(model, dtype)
        add_hearing(model, dtype)
    return model


@contextmanager
def _without_collections() -> Iterator[None]:
    """Without garbage collection, whose rounds over all modules take two thirds of the time of 12,032 experts."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def _cut(model: Model, config: ModelConfig, share: Share, build: Callable[[ModelConfig], Model]) -> None:
    """Set the cuts of a worker's model."""
    if config.architecture in _OUTSIDE_BUILDERS:
        raise UnsupportedError(
            f"{config.architecture} is computed by another package, whose layers know nothing of workers that "
            "share them; leave tensor_parallel_size out"
        )
    whole = build(_with_one_expert(share.whole))
    model.rules, model.cuts = whole.rules, {**whole.cuts, **cuts_of(model, whole, share)}
    experts = config.family.experts
    if experts is not None and experts.own is not None:
        model.rules = without_experts(model.rules, experts.num_experts)


def _with_one_expert(whole: ModelConfig) -> ModelConfig:
    """The same with one expert of each layer, for `cuts_of`: 12,032 experts take 3 seconds to build."""
    experts = whole.family.experts
    if experts is None:
        return whole
    return replace(whole, family=replace(whole.family, experts=replace(experts, own=range(1))))
