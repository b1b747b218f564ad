"""The memory that a KV cache may have on a host."""

from types import SimpleNamespace

import pytest

from lullm.units import GIB
from lullm.worker import sizing


@pytest.mark.parametrize(
    ("room", "expected"),
    [(None, 16), (100 * GIB, 16), (12 * GIB, 8), (6 * GIB, 3), (0, 0)],
    ids=["no limit", "plenty", "less than there is", "both pools equal", "nothing"],
)
def test_both_pools_fit_a_limit_on_addresses(monkeypatch, room, expected):
    info = SimpleNamespace(free_bytes=16 * GIB)
    device = SimpleNamespace(is_accelerator=False, memory_info=lambda: info)
    setup = SimpleNamespace(config=SimpleNamespace(swap_space=4.0), device=device)
    monkeypatch.setattr(sizing, "address_room_bytes", lambda: room)
    assert sizing.kv_memory_bytes(setup, None) == expected * GIB
