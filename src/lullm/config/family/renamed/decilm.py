"""DeciLM (https://arxiv.org/abs/2411.19146): Llama's layers, of which a search has thinned out each in its own way.

A layer has its own number of key heads and its own MLP, or a matrix in place of attention, or lacks one of both parts.
DeciLM-7B only has its own number of key heads in each layer.
"""

from dataclasses import dataclass, replace
from typing import Any

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import DENSE_READS, read_dense
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds, num_layers
from lullm.config.field import (
    MOST_HIDDEN,
    MOST_INTERMEDIATE,
    Data,
    boolean,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.layer.heads import dividing_heads, read_heads
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import FullAttention, KVHeads, Nothing

_GROUP, _NONE, _MATRIX, _SIZE, _FACTOR = (
    "n_heads_in_group", "no_op", "replace_with_linear", "intermediate_size", "ffn_mult",
)  # fmt: skip
_MULTIPLE = 256
"""Inner sizes are multiples of this."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Its heads of keys, or a matrix in place of attention; 0 and False: neither. `inner_size`: 0: it has no MLP."""

    num_heads: int
    has_matrix: bool
    inner_size: int


def _layers(data: Data) -> list[_Layer]:
    """Raises ModelLoadError."""
    per_layer, stated = data.get("num_key_value_heads_per_layer"), data.get("block_configs")
    name = "block_configs" if per_layer is None else "num_key_value_heads_per_layer"
    blocks = stated if per_layer is None else per_layer
    if not isinstance(blocks, list) or len(blocks) != num_layers(data):
        raise ModelLoadError(f"config.json: {name} must be a list of num_hidden_layers entries, not {shown(blocks)}")
    if per_layer is None:
        return [_layer(data, block) for block in blocks]
    size = positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE)
    return [_Layer(dividing_heads({**data, name: number}, name), False, size) for number in blocks]


def _layer(data: Data, block: Any) -> _Layer:
    parts = block if isinstance(block, dict) else {}
    attention, mlp = parts.get("attention"), parts.get("ffn")
    if not isinstance(attention, dict) or not isinstance(mlp, dict):
        raise ModelLoadError(f"config.json: an entry of block_configs must have attention and ffn, not {shown(block)}")
    _refuse_others(parts, {"attention", "ffn"})
    _refuse_others(attention, {_GROUP, _NONE, _MATRIX})
    _refuse_others({key: value for key, value in mlp.items() if key != "hidden_act"}, {_NONE, _SIZE, _FACTOR})
    if mlp.get("hidden_act") not in (None, data.get("hidden_act", "silu")):
        raise ModelLoadError(f"config.json: block_configs: hidden_act {shown(mlp['hidden_act'])} is not the model's")
    has_matrix = boolean(attention, _MATRIX, False)
    has_heads = not has_matrix and not boolean(attention, _NONE, False)
    heads = 0
    if has_heads:
        group = dividing_heads({**data, _GROUP: attention.get(_GROUP)}, _GROUP)
        heads = data["num_attention_heads"] // group
    return _Layer(heads, has_matrix, 0 if boolean(mlp, _NONE, False) else _inner_size(data, mlp))


def _refuse_others(part: Data, known: set[str]) -> None:
    for key, value in part.items():
        if key not in known and value not in (None, False):
            raise ModelLoadError(
                f"config.json: block_configs: {key} {shown(value)} is not supported; take a checkpoint whose layers "
                "have attention, a matrix or nothing, and an MLP or nothing"
            )


def _inner_size(data: Data, mlp: Data) -> int:
    """As stated, or by the factor on the hidden size, rounded up."""
    if mlp.get(_SIZE) is not None:
        return positive_int(mlp, _SIZE, most=MOST_INTERMEDIATE)
    if mlp.get(_FACTOR) is None:
        raise ModelLoadError(f"config.json: an entry of block_configs must have {_FACTOR} or {_SIZE}, or no MLP")
    factor = positive_float(mlp, _FACTOR, 1.0, most=1024.0)
    size = int(2 * factor * positive_int(data, "hidden_size", most=MOST_HIDDEN) / 3)
    return positive_int({_SIZE: -(-max(size, 1) // _MULTIPLE) * _MULTIPLE}, _SIZE, most=MOST_INTERMEDIATE)


def _derive(data: Data) -> Data:
    """With the most heads and the widest MLP of all layers as the model's."""
    layers = _layers(data)
    return {
        **data,
        "num_key_value_heads": max(layer.num_heads for layer in layers) or None,
        "intermediate_size": max(layer.inner_size for layer in layers) or _MULTIPLE,
    }


def _layer_kinds(data: Data) -> Kinds:
    _, most, _, size = read_heads(data)
    layers = _layers(data)
    is_mixed = any(layer.num_heads not in (0, most) for layer in layers)
    return tuple(
        FullAttention(KVHeads(layer.num_heads, size) if is_mixed else None) if layer.num_heads else Nothing()
        for layer in layers
    )


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    layers = _layers(data)
    sizes = tuple(layer.inner_size for layer in layers)
    matrices = tuple(layer.has_matrix for layer in layers)
    return replace(read_dense(data, kinds, head_dim), intermediate_sizes=sizes, matrix_layers=matrices)


DECILM = Family(
    _read,
    reads=DENSE_READS | {"attention_bias", "mlp_bias", "block_configs", "num_key_value_heads_per_layer"},
    layer_kinds=_layer_kinds,
    derive=_derive,
)
