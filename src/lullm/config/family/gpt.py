"""GPT-2 and OPT, which name most things in their own way."""

from typing import Any

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import UNUSED_WINDOW, activation
from lullm.config.family.family import Family
from lullm.config.field import MOST_INTERMEDIATE, boolean, positive_float, positive_int
from lullm.types.layer_kind import LayerKind

_OPT_EPS = 1e-5
"""OPT's files do not say it."""


def _read_gpt2(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    return DecoderConfig(
        intermediate_size=positive_int(data, "n_inner", 4 * positive_int(data, "hidden_size"), MOST_INTERMEDIATE),
        rms_norm_eps=positive_float(data, "layer_norm_epsilon", 1e-5),
        ropes=(None,) * len(kinds),
        attention_scale=head_dim**-0.5,
        activation=activation(data, "activation_function"),
        attention_bias=True,
        mlp_bias=True,
    )


def _read_opt(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    has_bias = boolean(data, "enable_bias", True)
    return DecoderConfig(
        intermediate_size=positive_int(data, "ffn_dim", most=MOST_INTERMEDIATE),
        rms_norm_eps=_OPT_EPS,
        ropes=(None,) * len(kinds),
        attention_scale=head_dim**-0.5,
        activation=activation(data, "activation_function"),
        attention_bias=has_bias,
        mlp_bias=has_bias,
        norms_first=boolean(data, "do_layer_norm_before", True),
        embedding_size=positive_int(data, "word_embed_proj_dim", positive_int(data, "hidden_size")),
    )


_NOT_READ = UNUSED_WINDOW | {"num_key_value_heads", "head_dim", "hidden_act", "intermediate_size", "rms_norm_eps"}
"""Of the common keys."""

GPT2_IGNORES = _NOT_READ | {
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "n_ctx",
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
}

GPT2 = Family(
    _read_gpt2,
    aliases={
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings",
    },
    defaults={"activation_function": "gelu_new", "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5},
    reads=frozenset({"n_inner"}),
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    ignores=GPT2_IGNORES,
)
OPT = Family(
    _read_opt,
    defaults={"activation_function": "relu", "tie_word_embeddings": True},
    reads=frozenset({"ffn_dim", "enable_bias", "do_layer_norm_before", "word_embed_proj_dim"}),
    fixed={"layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False},
    ignores=_NOT_READ | {"dropout", "layerdrop", "init_std", "activation_dropout"},
)
