"""The kinds of an architecture's layers, from `layer_types`, `sliding_window` and their older spellings.

Every function takes a `config.json` with the family's defaults, returns one kind per layer, and raises ModelLoadError.
The rules for files without `layer_types` are transformers'.
"""

from collections.abc import Mapping, Sequence

from lullm.config.field import MOST_LAYERS, Data, boolean, integer, positive_int, shown
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import FullAttention, LayerKind, SlidingWindow

Kinds = tuple[LayerKind, ...]
"""The kind of each layer."""
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
_OLDER = {"mamba": LINEAR, "attention": FULL}
"""Names of older files."""


def num_layers(data: Data) -> int:
    return positive_int(data, "num_hidden_layers", most=MOST_LAYERS)


def full_attention(data: Data) -> Kinds:
    """For families without windows, whatever the value of `sliding_window`."""
    return _uniform(data, FULL)


def window_unless_null(data: Data) -> Kinds:
    """Mistral, Mixtral, Phi-3: all layers have a window, or none has."""
    return _uniform(data, FULL if data.get("sliding_window") is None else SLIDING)


def window_where_named(data: Data) -> Kinds:
    """Ministral: by `layer_types`; without them all layers have a window, or none has."""
    return _mixed(data, [FULL if data.get("sliding_window") is None else SLIDING] * num_layers(data))


def full_where_not_named(data: Data) -> Kinds:
    """Mellum: by `layer_types`; without them no layer has a window."""
    return _mixed(data, [FULL] * num_layers(data))


def window_if_switched_on(data: Data) -> Kinds:
    """Qwen2 and 3: layers from `max_window_layers` on have a window, if windows are switched on."""
    last_full = integer(data, "max_window_layers", 28)
    has_window = _is_switched_on(data)
    return _mixed(
        data if has_window else {**data, "sliding_window": None},
        [SLIDING if has_window and layer >= last_full else FULL for layer in range(num_layers(data))],
    )


def window_from(data: Data) -> Kinds:
    """dots.llm1: layers from `max_window_layers` on have a window, unless there is none."""
    last_full = num_layers(data) if data.get("sliding_window") is None else integer(data, "max_window_layers", 62)
    return _mixed(data, [SLIDING if layer >= last_full else FULL for layer in range(num_layers(data))])


def window_if_switched_on_for_all(data: Data) -> Kinds:
    """Qwen3 MoE: windows in all layers, or in none."""
    return _uniform(data, SLIDING if _is_switched_on(data) else FULL)


def window_in_odd(data: Data) -> Kinds:
    """Qwen2 MoE: of the first `max_window_layers` layers every second, if windows are switched on."""
    last, has_window = integer(data, "max_window_layers", 28), _is_switched_on(data)
    return _mixed(
        data if has_window else {**data, "sliding_window": None},
        [SLIDING if has_window and layer < last and layer % 2 == 0 else FULL for layer in range(num_layers(data))],
    )


def _is_switched_on(data: Data) -> bool:
    return boolean(data, "use_sliding_window", False) and data.get("sliding_window") is not None


def layers_that_turn(data: Data) -> list[bool]:
    """By layer, whether its heads are rotated. In `no_rope_layers`, in spite of its name, 1 means rotation."""
    stated, count = data.get("no_rope_layers"), num_layers(data)
    if stated is None or stated == []:
        interval = positive_int(data, "no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(count)]
    if not isinstance(stated, list) or len(stated) < count or not all(value in (0, 1) for value in stated):
        raise ModelLoadError(f"config.json: no_rope_layers must be a list of 0 and 1 per layer, not {shown(stated)}")
    return [bool(value) for value in stated[:count]]


def window_without_rope(data: Data) -> Kinds:
    """SmolLM3: layers whose heads are not rotated have a window, if windows are switched on."""
    has_window = _is_switched_on(data)
    return _mixed(
        data if has_window else {**data, "sliding_window": None},
        [SLIDING if has_window and not turns else FULL for turns in layers_that_turn(data)],
    )


def window_but_every(data: Data, interval: int, is_first: bool = False) -> Kinds:
    """All layers except each `interval`-th have a window; `is_first`: counted from the first."""
    ahead = 0 if is_first else 1
    return _mixed(data, [SLIDING if (layer + ahead) % interval else FULL for layer in range(num_layers(data))])


def _uniform(data: Data, layer_type: str) -> Kinds:
    kinds = _mixed({**data, "layer_types": None}, [layer_type] * num_layers(data))
    stated = data.get("layer_types")
    if stated is not None and stated != [layer_type] * len(kinds):
        raise ModelLoadError(
            f"config.json: by its other keys all layers have {layer_type}, and layer_types says {shown(stated)}; this "
            "architecture has one kind of layers"
        )
    return kinds


def _mixed(data: Data, default_types: Sequence[str]) -> Kinds:
    """By `layer_types`, or by `default_types` without them."""
    stated = data.get("layer_types")
    types = default_types if stated is None else stated
    has_window = isinstance(types, list) and SLIDING in types
    if has_window and data.get("sliding_window") is None:
        raise ModelLoadError(f"config.json: layer_types names {SLIDING}, but no sliding_window is switched on")
    window = SlidingWindow(positive_int(data, "sliding_window")) if has_window else FullAttention()
    return kinds_by_type(data, {SLIDING: window}, default_types)


def kinds_by_type(data: Data, others: Mapping[str, LayerKind], default_types: Sequence[str]) -> Kinds:
    """By `layer_types`, or by `default_types` without them: full attention, or one of the other kinds.

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
            f"config.json: layer_types (layers_block_type) names {len(named)} layers, num_hidden_layers is "
            f"{num_layers(data)}"
        )
    return tuple(kinds[name] for name in named)
