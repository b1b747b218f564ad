"""GPT-1 and 2, GPT-Neo, GPTBigCode, BioGPT and OPT: learned positions, and mostly their own names of keys."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import activation
from lullm.config.family.family import UNUSED_WINDOW, Family
from lullm.config.family.layer_kinds import Kinds, num_layers
from lullm.config.field import (
    MOST_HEADS,
    MOST_INTERMEDIATE,
    MOST_LAYERS,
    Data,
    boolean,
    positive_float,
    positive_int,
    shown,
)
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import FullAttention, SlidingWindow

_OPT_EPS = 1e-5
"""OPT's files lack it, and transformers does not read BioGPT's."""


def _read_gpt2(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    return DecoderConfig(
        intermediate_size=positive_int(data, "n_inner", 4 * positive_int(data, "hidden_size"), MOST_INTERMEDIATE),
        rms_norm_eps=positive_float(data, "layer_norm_epsilon", 1e-5),
        ropes=(None,) * len(kinds),
        attention_scale=head_dim**-0.5,
        activation=activation(data, "activation_function"),
        attention_bias=True,
        mlp_bias=True,
    )


def _read_opt(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
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


def _read_gpt1(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """Norms come after the sums. The files' "gelu" is its approximation."""
    name = data.get("afn", "gelu")
    if name not in ("gelu", "relu", "silu", "swish"):
        raise ModelLoadError(f"config.json: afn {shown(name)} is not supported, only gelu, relu, silu, swish")
    data = {**data, "activation_function": "gelu_new" if name == "gelu" else name}
    return replace(_read_gpt2(data, kinds, head_dim), norms_first=False)


def _read_bigcode(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    is_scaled = boolean(data, "scale_attn_weights", True)
    return replace(_read_gpt2(data, kinds, head_dim), attention_scale=head_dim**-0.5 if is_scaled else 1.0)


def _shared_keys(data: Data) -> Data:
    """One key head for all queries, or one for each."""
    num_heads = positive_int(data, "num_attention_heads", most=MOST_HEADS)
    return {**data, "num_key_value_heads": 1 if boolean(data, "multi_query", True) else num_heads}


def _read_neo(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    config = _read_gpt2({**data, "n_inner": data.get("intermediate_size")}, kinds, head_dim)
    return replace(config, attention_scale=1.0, attention_bias=False, output_bias=True)


def _neo_kinds(data: Data) -> Kinds:
    """By `attention_types`: pairs of names, and their repeats. Raises ModelLoadError."""
    stated, names = data.get("attention_types") or [[["global", "local"], 12]], []
    try:
        for pattern, count in stated:
            names += list(pattern) * min(positive_int({"attention_types": count}, "attention_types"), MOST_LAYERS)
    except (TypeError, ValueError):
        raise ModelLoadError(
            f"config.json: attention_types must hold pairs of names and a number, not {shown(stated)}"
        ) from None
    if len(names) != num_layers(data) or not {str(name) for name in names} <= {"global", "local"}:
        raise ModelLoadError(
            f"config.json: attention_types must say global or local for each of num_layers ({num_layers(data)}), not "
            f"{shown(names)}"
        )
    window = SlidingWindow(positive_int(data, "window_size", 256))
    return tuple(window if name == "local" else FullAttention() for name in names)


def _read_biogpt(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    hidden_size = positive_int(data, "hidden_size")
    return DecoderConfig(
        intermediate_size=positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE),
        rms_norm_eps=_OPT_EPS,
        ropes=(None,) * len(kinds),
        attention_scale=head_dim**-0.5,
        activation=activation(data, "hidden_act"),
        attention_bias=True,
        mlp_bias=True,
        embedding_scale=hidden_size**0.5 if boolean(data, "scale_embedding", True) else 1.0,
    )


_NOT_READ = UNUSED_WINDOW | {"num_key_value_heads", "head_dim", "hidden_act", "intermediate_size", "rms_norm_eps"}
"""Common keys that are not read."""

GPT2_IGNORES = _NOT_READ | {
    "reorder_and_upcast_attn", "resid_pdrop", "embd_pdrop", "attn_pdrop", "n_ctx", "summary_type", "summary_use_proj",
    "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
}  # fmt: skip

_SHORT_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}

GPT1 = Family(
    _read_gpt1,
    aliases=_SHORT_NAMES,
    defaults={"afn": "gelu", "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5, "n_positions": 512},
    ignores=GPT2_IGNORES | {"n_special", "predict_special_tokens"},
)
GPT2 = Family(
    _read_gpt2,
    aliases=_SHORT_NAMES,
    defaults={"activation_function": "gelu_new", "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5},
    reads={"n_inner"},
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    ignores=GPT2_IGNORES,
)
OPT = Family(
    _read_opt,
    defaults={"activation_function": "relu", "tie_word_embeddings": True},
    reads={"ffn_dim", "enable_bias", "do_layer_norm_before", "word_embed_proj_dim"},
    fixed={"layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False},
    ignores=_NOT_READ | {"dropout", "layerdrop", "init_std", "activation_dropout"},
)
GPT_BIGCODE = Family(
    _read_bigcode,
    aliases=_SHORT_NAMES,
    defaults={"activation_function": "gelu_pytorch_tanh", "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5},
    reads={"n_inner", "multi_query", "scale_attn_weights"},
    # Softmax is in float32 here in any case; the others have been older codes' own.
    ignores=GPT2_IGNORES
    | {
        "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner", "max_batch_size",
        "max_sequence_length", "pad_key_length", "pre_allocate_kv_cache", "validate_runner_input",
    },
    derive=_shared_keys,
)  # fmt: skip
GPT_NEO = Family(
    _read_neo,
    aliases={"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"},
    defaults={"activation_function": "gelu_new", "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5},
    reads={"intermediate_size", "attention_types", "window_size"},
    # `attention_layers` repeats `attention_types`, which is read.
    ignores=(GPT2_IGNORES - {"intermediate_size"})
    | {"attention_layers", "resid_dropout", "embed_dropout", "classifier_dropout"},
    layer_kinds=_neo_kinds,
)
BIOGPT = Family(
    _read_biogpt,
    defaults={"hidden_act": "gelu", "tie_word_embeddings": True},
    reads={"intermediate_size", "hidden_act", "scale_embedding"},
    ignores=(_NOT_READ - {"intermediate_size", "hidden_act"}) | {"layer_norm_eps", "layerdrop", "activation_dropout"},
)
