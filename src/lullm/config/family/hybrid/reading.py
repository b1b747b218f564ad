"""Common keys of hybrids for their recurrent layers."""

from lullm.config.field import Data, shown
from lullm.errors import ModelLoadError

MOST_KERNEL = 1 << 8


def only_silu(data: Data, name: str) -> None:
    """Raises ModelLoadError: convolutions have another activation."""
    if data.get(name, "silu") not in ("silu", "swish"):
        raise ModelLoadError(f"config.json: {name} {shown(data[name])} is not supported in recurrent layers, only silu")
