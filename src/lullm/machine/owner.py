"""Processes belong to the one that started them, not to its forks, which have a copy of what knows them."""

import os

from lullm.errors import UnsupportedError


def check_owner(owner: int) -> None:
    """Return if this is the process `owner`. Raises UnsupportedError: it is a fork."""
    if os.getpid() != owner:
        raise UnsupportedError(
            f"the engine belongs to process {owner}, of which this is a fork; call it there, or build another here"
        )
