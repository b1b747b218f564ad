"""Granite's factors on the embedding, the residual stream, the scores and the logits; HyperCLOVA X's and MiniCPM's."""

from dataclasses import replace
from functools import partial
from typing import Any

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import DENSE_READS, read_dense
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds, window_but_every
from lullm.config.field import Data, boolean, positive_float, positive_int, shown
from lullm.config.rope import RopeConfig, read_theta
from lullm.errors import ModelLoadError

GRANITE_FACTORS = {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"}


def read_granite(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """As `read_dense`, with the factors."""
    return replace(
        read_dense(data, kinds, head_dim),
        embedding_scale=positive_float(data, "embedding_multiplier", 1.0),
        scales_shown=True,
        residual_scale=positive_float(data, "residual_multiplier", 1.0),
        attention_scale=positive_float(data, "attention_multiplier", 1.0),
        logit_scale=1 / positive_float(data, "logits_scaling", 1.0),
    )


def with_minicpm_factors(config: DecoderConfig, data: Data) -> DecoderConfig:
    """MiniCPM's, which are Granite's under other names; null means none. Raises ModelLoadError."""
    base, depth = data.get("dim_model_base"), data.get("scale_depth")
    factor = 1.0 if depth is None else positive_float(data, "scale_depth", 1.4)
    return replace(
        config,
        embedding_scale=positive_float(data, "scale_emb", 1.0),
        residual_scale=1.0 if depth is None else factor / len(config.ropes) ** 0.5,
        logit_scale=1.0 if base is None else positive_int(data, "dim_model_base") / positive_int(data, "hidden_size"),
    )


def with_sinks(config: DecoderConfig, data: Data) -> DecoderConfig:
    """For models with windows: sinks, and a base frequency for each layer; a layer with 0 does not rotate its heads."""
    thetas = data.get("layer_rope_theta") or [None] * len(config.ropes)
    if not isinstance(thetas, list) or len(thetas) != len(config.ropes):
        raise ModelLoadError(f"config.json: layer_rope_theta must name {len(config.ropes)} layers, not {shown(thetas)}")
    ropes = tuple(
        None if theta == 0 else rope if rope is None else replace(rope, rope_theta=_theta(theta, rope))
        for theta, rope in zip(thetas, config.ropes, strict=True)
    )
    return replace(config, ropes=ropes, has_sinks=True)


def _theta(stated: Any, rope: RopeConfig) -> float:
    return read_theta({"layer_rope_theta": stated}, "layer_rope_theta", rope.rope_theta)


def _read_swa(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    return with_sinks(read_granite(data, kinds, head_dim), data)


def _read_hyperclovax(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """Logits are multiplied, while Granite's are divided."""
    return replace(
        read_granite(data, kinds, head_dim),
        attention_scale=positive_float(data, "attention_multiplier", head_dim**-0.5),
        logit_scale=positive_float(data, "logits_scaling", 1.0),
        has_post_norms=boolean(data, "use_post_norm", True),
    )


SWA_DEFAULTS = {"rms_norm_eps": 1e-5, "sliding_window": 128, "tie_word_embeddings": True, "num_key_value_heads": 4}
SWA_READS = {"layer_rope_theta"}
swa_kinds = partial(window_but_every, interval=4, is_first=True)

GRANITE_SWA = Family(
    _read_swa,
    defaults=SWA_DEFAULTS,
    reads=DENSE_READS | GRANITE_FACTORS | SWA_READS | {"attention_bias", "mlp_bias"},
    layer_kinds=swa_kinds,
)
HYPERCLOVAX = Family(
    _read_hyperclovax, reads=DENSE_READS | GRANITE_FACTORS | {"attention_bias", "mlp_bias", "use_post_norm"}
)
GRANITE = Family(read_granite, reads=DENSE_READS | GRANITE_FACTORS | {"attention_bias", "mlp_bias"})
