"""What the layers of a hybrid keep, by the names that its file has for them."""

from collections.abc import Mapping, Sequence
from typing import Any

from lullm.config.family.layer_kinds import num_layers
from lullm.config.field import shown
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import FullAttention, LayerKind

FULL, LINEAR = "full_attention", "linear_attention"
MOST_KERNEL = 1 << 8
_OLDER = {"mamba": LINEAR, "attention": FULL}
"""Names of older files."""


def kinds_by_type(
    data: dict[str, Any], others: Mapping[str, LayerKind], default_types: Sequence[str]
) -> tuple[LayerKind, ...]:
    """By `layer_types`, or `default_types` where there are none: full attention, or one of the other kinds.

    Raises ModelLoadError.
    """
    stated = data.get("layer_types")
    types = list(default_types) if stated is None else stated
    kinds = {FULL: FullAttention(), **others}
    named = [_OLDER.get(str(name), str(name)) for name in types] if isinstance(types, list) else []
    if not named or not kinds.keys() >= set(named):
        raise ModelLoadError(
            f"config.json: layer_types (layers_block_type) must be a list of {' and '.join(kinds)}, not {shown(types)}"
        )
    if len(named) != num_layers(data):
        raise ModelLoadError(
            f"config.json: layer_types names {len(named)} layers, num_hidden_layers is {num_layers(data)}"
        )
    return tuple(kinds[name] for name in named)


def only_silu(data: dict[str, Any], name: str) -> None:
    """Raises ModelLoadError: convolutions have another activation."""
    if data.get(name, "silu") not in ("silu", "swish"):
        raise ModelLoadError(f"config.json: {name} {shown(data[name])} is not supported in recurrent layers, only silu")
