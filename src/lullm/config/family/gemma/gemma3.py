"""The `config.json` of Gemma 1, 2 and 3 (text)."""

from dataclasses import replace
from functools import partial

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import activation, ropes_of
from lullm.config.family.encoder_only.bidirectional import OF_LAST, to_both_sides
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds, window_but_every
from lullm.config.field import (
    MOST_INTERMEDIATE,
    MOST_LAYERS,
    Data,
    boolean,
    optional_positive_float,
    positive_float,
    positive_int,
)
from lullm.config.rope import ROPE_KEYS, RopeConfig, read_flat_rope, read_ropes_by_kind, read_theta


def _read(data: Data, kinds: Kinds, full: RopeConfig, local: RopeConfig) -> DecoderConfig:
    return DecoderConfig(
        intermediate_size=positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE),
        rms_norm_eps=positive_float(data, "rms_norm_eps", 1e-6),
        ropes=ropes_of(kinds, full, local),
        attention_scale=positive_float(data, "query_pre_attn_scalar", 256.0) ** -0.5,
        activation=activation(data, "hidden_activation"),
        attention_bias=boolean(data, "attention_bias", False),
        embedding_scale=positive_int(data, "hidden_size") ** 0.5,
        attention_soft_cap=optional_positive_float(data, "attn_logit_softcapping"),
        final_soft_cap=optional_positive_float(data, "final_logit_softcapping"),
    )


def _read_first(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """The first files have "gelu" and mean its approximation."""
    rope = read_flat_rope(data)
    stated = {**data, "hidden_activation": data.get("hidden_act"), "query_pre_attn_scalar": head_dim}
    is_legacy = stated["hidden_activation"] == "gelu"
    return _read(stated | ({"hidden_activation": "gelu_pytorch_tanh"} if is_legacy else {}), kinds, rope, rope)


def _read_second(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    rope = read_flat_rope(data)
    return _read(data, kinds, rope, rope)


def _read_third(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    full_theta, local_theta = read_theta(data, "rope_theta", 1e6), read_theta(data, "rope_local_base_freq", 1e4)
    config = _read(data, kinds, *read_ropes_by_kind(data, full_theta, local_theta))
    return replace(config, encoder_only=OF_LAST) if _sees_all(data) else config


def _layer_kinds_of_third(data: Data) -> Kinds:
    kinds = window_but_every(data, positive_int(data, "sliding_window_pattern", 6, MOST_LAYERS))
    return to_both_sides(kinds) if _sees_all(data) else kinds


def _sees_all(data: Data) -> bool:
    """EmbeddingGemma (https://arxiv.org/abs/2509.20354): a token sees those behind it, too."""
    return boolean(data, "use_bidirectional_attention", False)


_DEFAULTS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096,
}
_READS = ROPE_KEYS | {"intermediate_size", "rms_norm_eps", "attention_bias", "final_logit_softcapping"}
_FIXED = {"use_bidirectional_attention": False}
_IGNORES = {"cache_implementation", "hidden_act", "_sliding_window_pattern"}
"""transformers reads `hidden_activation`, not `hidden_act`, and the pattern only without a line in front."""
_REPEATED = {"sliding_window_size"}
"""The released Gemma 2 files have `sliding_window` under two names."""

GEMMA = Family(
    _read_first,
    defaults={
        "head_dim": 256,
        "num_key_value_heads": 16,
        "tie_word_embeddings": True,
        "hidden_act": "gelu_pytorch_tanh",
    },
    reads=ROPE_KEYS | {"intermediate_size", "rms_norm_eps", "attention_bias"},
    fixed=_FIXED,
    # Files have `hidden_activation` beside `hidden_act`, which counts.
    ignores={"hidden_activation", "cache_implementation"},
)
GEMMA2 = Family(
    _read_second,
    defaults=_DEFAULTS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    reads=_READS | {"attn_logit_softcapping"},
    fixed=_FIXED,
    ignores=_IGNORES | _REPEATED,
    layer_kinds=partial(window_but_every, interval=2),
)
VAULT_GEMMA = replace(GEMMA2, ignores=_IGNORES)
GEMMA3 = Family(
    _read_third,
    # Files of multimodal models lack the first four.
    defaults=_DEFAULTS
    | {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072},
    reads=_READS | {"sliding_window_pattern", "rope_local_base_freq", "use_bidirectional_attention"},
    fixed={"attn_logit_softcapping": None},
    ignores=_IGNORES,
    layer_kinds=_layer_kinds_of_third,
)
