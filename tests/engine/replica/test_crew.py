"""Crew: how many engines a machine has room for."""

import pytest

from lullm.engine.replica.crew import PROCESS_BYTES, check_room
from lullm.errors import ConfigError


def test_more_engines_than_memory_are_refused_before_any_starts():
    """1000 of them were all started, and took the machine down."""
    check_room(8, 8 * PROCESS_BYTES)
    with pytest.raises(ConfigError, match=r"data_parallel_size=9 needs at least .*; choose at most 8$"):
        check_room(9, 8 * PROCESS_BYTES)
