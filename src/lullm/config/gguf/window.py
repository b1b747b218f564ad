"""The window layers of a GGUF file."""

from array import array

from lullm.config.gguf.keys import Keys

FULL, _WINDOW = "full_attention", "sliding_attention"


def layer_types(keys: Keys, interval: int, first_is_full: bool = False) -> list[str]:
    """The type of each layer: as in the file, or a window in all layers but each `interval`-th.

    `first_is_full`: these are counted from the first.
    """
    stated, count = keys.get("attention.sliding_window_pattern"), keys.num_layers
    if isinstance(stated, array) and len(stated) >= count:
        return [_WINDOW if has_window else FULL for has_window in stated[:count]]
    if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0:
        interval = stated
    elif stated is not None:
        raise keys.fault(f"attention.sliding_window_pattern {stated!r:.60} does not say which layers have windows")
    ahead = 0 if first_is_full else 1
    return [_WINDOW if (layer + ahead) % interval else FULL for layer in range(count)]
