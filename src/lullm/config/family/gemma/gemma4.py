"""The `config.json` of Gemma 4 (text)."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig, LayerInputConfig
from lullm.config.family.dense import activation, ropes_of
from lullm.config.family.experts.reading import read_experts
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import FULL, Kinds, window_but_every
from lullm.config.field import (
    MOST_HEAD_DIM,
    MOST_INTERMEDIATE,
    MOST_VOCAB,
    Data,
    boolean,
    integer,
    optional_object,
    optional_positive_float,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.layer.experts import ExpertsConfig
from lullm.config.layer.heads import dividing_heads
from lullm.config.rope import ROPE_KEYS, read_ropes_by_kind
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import FullAttention, KVHeads, LayerKind, SharedAttention, SlidingWindow, attended_kind

_DEFAULT_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


def _layer_kinds(data: Data) -> Kinds:
    """By `layer_types`, with the heads of each; the last ones share the keys and values of the last of their type."""
    types = data.get("layer_types")
    if isinstance(types, list) and types:
        types = [*types[:-1], FULL]  # as transformers forces it
    plain = window_but_every({**data, "layer_types": types}, 6)
    if not isinstance(plain[-1], FullAttention):
        plain = (*plain[:-1], FullAttention())
    kinds = [_with_heads(kind, heads) for kind, heads in zip(plain, _heads(data, plain), strict=True)]
    return with_shared_layers(data, kinds)


def with_shared_layers(data: Data, kinds: list[LayerKind]) -> Kinds:
    """The last `num_kv_shared_layers` share the keys and values of the last of their type before.

    Raises ModelLoadError.
    """
    num_shared = integer(data, "num_kv_shared_layers", 0)
    first = len(kinds) - num_shared
    for layer in range(max(first, 0), len(kinds)):
        source = next((other for other in reversed(range(first)) if kinds[other] == kinds[layer]), None)
        if source is None:
            raise ModelLoadError(
                f"config.json: num_kv_shared_layers ({num_shared}): layer {layer} shares keys and values, and before "
                f"layer {first} none has its type (layer_types) and heads (per_layer_config)"
            )
        kinds[layer] = SharedAttention(source)
    if not 0 <= num_shared < len(kinds):
        raise ModelLoadError(f"config.json: num_kv_shared_layers {num_shared} must be from 0 to {len(kinds) - 1}")
    return tuple(kinds)


def _with_heads(kind: LayerKind, heads: KVHeads) -> LayerKind:
    assert isinstance(kind, FullAttention | SlidingWindow), "`window_but_every` knows no others"
    return replace(kind, heads=heads)


def _heads(data: Data, kinds: Kinds) -> list[KVHeads]:
    """The heads of each layer: the model's, changed by `per_layer_config`, or by the global keys of full layers."""
    own = KVHeads(dividing_heads(data), positive_int(data, "head_dim", most=MOST_HEAD_DIM))
    if data.get("per_layer_config") is not None:
        return _stated_heads(data, own, len(kinds))
    size = positive_int(data, "global_head_dim", 512, MOST_HEAD_DIM)
    has_own_number = boolean(data, "attention_k_eq_v", False) and data.get("num_global_key_value_heads") is not None
    full = KVHeads(dividing_heads(data, "num_global_key_value_heads") if has_own_number else own.num_heads, size)
    return [full if isinstance(kind, FullAttention) else own for kind in kinds]


def _stated_heads(data: Data, own: KVHeads, num_layers: int) -> list[KVHeads]:
    heads = [own] * num_layers
    for layer, stated in optional_object(data, "per_layer_config").items():
        is_layer = isinstance(layer, str) and layer.isascii() and layer.isdigit() and int(layer[:9]) < num_layers
        if not is_layer or not isinstance(stated, dict) or stated.keys() - {"head_dim", "num_key_value_heads"}:
            raise ModelLoadError(
                "config.json: per_layer_config must hold head_dim and num_key_value_heads by number of a layer, not "
                f"{shown(layer)}: {shown(stated)}"
            )
        size = positive_int(stated, "head_dim", own.head_dim, MOST_HEAD_DIM)
        heads[int(layer)] = KVHeads(dividing_heads({**data, **stated}), size)
    return heads


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    if data.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise ModelLoadError(
            f"config.json: use_bidirectional_attention {shown(data['use_bidirectional_attention'])} is not supported: "
            "tokens see those before them only"
        )
    attended = tuple(attended_kind(kinds, layer) for layer in range(len(kinds)))
    if any(kind.heads is not None and kind.heads.head_dim % 2 for kind in attended if isinstance(kind, FullAttention)):
        raise ModelLoadError("config.json: global_head_dim, or head_dim in per_layer_config, must be even")
    parameters = {"rope_parameters": _DEFAULT_ROPES, **{k: v for k, v in data.items() if v is not None}}
    full, local = read_ropes_by_kind(parameters, 1e4, 1e4)
    size = positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE)
    is_wide = boolean(data, "use_double_wide_mlp", False)
    sizes = tuple(2 * size if is_wide and isinstance(kind, SharedAttention) else size for kind in kinds)
    has_equal = boolean(data, "attention_k_eq_v", False)
    return DecoderConfig(
        intermediate_size=size,
        intermediate_sizes=sizes if is_wide else (),
        rms_norm_eps=positive_float(data, "rms_norm_eps", 1e-6),
        ropes=ropes_of(attended, full, local),
        attention_scale=1.0,
        activation=activation(data, "hidden_activation"),
        attention_bias=boolean(data, "attention_bias", False),
        has_value_norms=True,
        layers_of_equal_values=tuple(has_equal and isinstance(kind, FullAttention) for kind in kinds),
        embedding_scale=positive_int(data, "hidden_size") ** 0.5,
        final_soft_cap=optional_positive_float(data, "final_logit_softcapping"),
        layer_inputs=layer_inputs(data),
        experts=_experts(data, len(kinds)) if boolean(data, "enable_moe_block", False) else None,
    )


def layer_inputs(data: Data) -> LayerInputConfig | None:
    size = integer(data, "hidden_size_per_layer_input", 0)
    if size == 0:
        return None
    vocab_size = positive_int(data, "vocab_size_per_layer_input", most=MOST_VOCAB)
    pad_token_id = integer(data, "pad_token_id", 0)
    if not 0 <= pad_token_id < vocab_size:
        raise ModelLoadError(f"config.json: pad_token_id {pad_token_id} is not below {vocab_size}, the embedded tokens")
    size = positive_int(data, "hidden_size_per_layer_input", most=MOST_INTERMEDIATE)
    return LayerInputConfig(size, vocab_size, pad_token_id)


def _experts(data: Data, num_layers: int) -> ExpertsConfig:
    stated = {**data, "num_experts_per_tok": data.get("top_k_experts")}
    try:
        experts = read_experts(stated, "num_experts", "moe_intermediate_size", (True,) * num_layers)
    except ModelLoadError as error:
        raise ModelLoadError(str(error).replace("num_experts_per_tok", "top_k_experts")) from None
    return replace(experts, has_factors=True)


_DEFAULTS = {
    "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "sliding_window": 512,
}  # fmt: skip
_READS = (ROPE_KEYS - {"rope_theta", "rope_scaling"}) | {
    "attention_bias", "final_logit_softcapping", "global_head_dim", "num_global_key_value_heads", "per_layer_config",
    "attention_k_eq_v", "num_kv_shared_layers", "use_double_wide_mlp", "use_bidirectional_attention",
}  # fmt: skip
_EXPERTS = {"enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size"}

GEMMA4 = Family(
    _read,
    defaults=_DEFAULTS | {"vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256},
    reads=_READS | _EXPERTS,
    layer_kinds=_layer_kinds,
)
GEMMA4_UNIFIED = Family(
    _read,
    defaults=_DEFAULTS | {"max_position_embeddings": 262144, "sliding_window": 1024},
    reads=_READS,
    layer_kinds=_layer_kinds,
)
"""The 12B model: without embeddings per layer and experts."""
