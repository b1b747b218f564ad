"""Processes belong to the process that started them, not to its forks, which copy the objects that own them."""

import os

from lullm.errors import UnsupportedError


def check_owner(owner: int) -> None:
    """Check that this is the process `owner`. Raises UnsupportedError: it is a fork."""
    if os.getpid() != owner:
        raise UnsupportedError(
            f"the engine belongs to process {owner}, of which this is a fork; call it there, or build another here"
        )
