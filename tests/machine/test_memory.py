"""What the kernel says of this process's memory and addresses."""

import resource

import pytest

from lullm.errors import LullmError
from lullm.machine import memory
from lullm.units import GIB, MIB


def test_a_limit_on_addresses_leaves_what_is_not_reserved(monkeypatch):
    limits = {resource.RLIMIT_AS: (1 << 46, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    room = memory.address_room_bytes()
    assert 0 < room < (1 << 46) - memory.resident_bytes()
    limits[resource.RLIMIT_AS] = (1 * MIB, 1 * GIB)  # what was reserved before may be more
    assert memory.address_room_bytes() == 0
    limits[resource.RLIMIT_AS] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert memory.address_room_bytes() is None


def test_a_machine_without_proc_says_so(monkeypatch):
    monkeypatch.setattr(memory, "_field", lambda path, name: None)
    with pytest.raises(LullmError, match="mount /proc"):
        memory.available_memory_bytes()
