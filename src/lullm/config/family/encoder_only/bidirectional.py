"""Decoders without the causal mask: a token sees its whole text, as in an encoder."""

from dataclasses import replace
from functools import partial
from typing import Literal

from lullm.config.decoder import DecoderConfig, EncoderOnlyConfig
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds
from lullm.config.field import Data, boolean, shown
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import EncoderOnlyAttention, FullAttention, SlidingWindow, has_window

OF_LAST = EncoderOnlyConfig(text_kind="last", label_kind="last")
"""As in vLLM, texts are pooled as those of the decoder would be."""


def _kinds(family: Family, data: Data) -> Kinds:
    kinds = family.layer_kinds(data)
    if boolean(data, "is_causal", True):
        return kinds
    if any(map(has_window, kinds)):
        raise ModelLoadError(
            "config.json: is_causal is false, which is implemented for layers without sliding windows only; take a "
            "checkpoint without them"
        )
    return (EncoderOnlyAttention(),) * len(kinds)


def _read(family: Family, data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    config = family.read(data, kinds, head_dim)
    return config if boolean(data, "is_causal", True) else replace(config, encoder_only=OF_LAST)


def or_bidirectional(family: Family) -> Family:
    """The family, whose files may say that there is no mask (`is_causal`: gte-Qwen2)."""
    return replace(
        family, read=partial(_read, family), layer_kinds=partial(_kinds, family), reads=family.reads | {"is_causal"}
    )


_POOLINGS: dict[str, Literal["mean", "cls", "last"]] = {"avg": "mean", "cls": "cls", "last": "last"}


def _read_llama(family: Family, data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    if (pooling := data.get("pooling", "avg")) not in _POOLINGS:
        raise ModelLoadError(f"config.json: pooling {shown(pooling)} is not supported, only {', '.join(_POOLINGS)}")
    return replace(family.read(data, kinds, head_dim), encoder_only=EncoderOnlyConfig(text_kind=_POOLINGS[pooling]))


def without_mask(family: Family) -> Family:
    """The family of an architecture that never has a mask (NVIDIA's `LlamaBidirectionalModel`)."""
    return replace(
        family,
        read=partial(_read_llama, family),
        layer_kinds=lambda data: (EncoderOnlyAttention(),) * len(family.layer_kinds(data)),
        reads=family.reads | {"pooling"},
        fixed={**family.fixed, "is_causal": False},
    )


def to_both_sides(kinds: Kinds) -> Kinds:
    """Gemma 3 without its mask: a window is as wide as before, half of it behind the token."""
    return tuple(
        EncoderOnlyAttention(kind.window // 2)
        if isinstance(kind, SlidingWindow)
        else EncoderOnlyAttention()
        if isinstance(kind, FullAttention)
        else kind
        for kind in kinds
    )
