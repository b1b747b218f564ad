"""Granite's factors on the embedding, the residual stream, the scores and the logits."""

from dataclasses import replace
from typing import Any

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import DENSE_READS, NO_WINDOW, UNUSED_WINDOW, read_dense
from lullm.config.family.family import Family
from lullm.config.field import positive_float
from lullm.types.layer_kind import LayerKind

GRANITE_FACTORS = frozenset({"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"})


def read_granite(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    """As `read_dense`, with the factors."""
    return replace(
        read_dense(data, kinds, head_dim),
        embedding_scale=positive_float(data, "embedding_multiplier", 1.0),
        residual_scale=positive_float(data, "residual_multiplier", 1.0),
        attention_scale=positive_float(data, "attention_multiplier", 1.0),
        logit_scale=1 / positive_float(data, "logits_scaling", 1.0),
    )


GRANITE = Family(
    read_granite,
    reads=DENSE_READS | GRANITE_FACTORS | {"attention_bias", "mlp_bias"},
    fixed=NO_WINDOW,
    ignores=UNUSED_WINDOW,
)
