"""The file in which the workers of a host meet, after the meeting."""

import os
from pathlib import Path

from lullm.collective.torch_group import TorchGroup
from lullm.types.parallel.placement import Axis
from lullm.worker.meeting import Meeting


def test_a_group_keeps_its_file_until_it_is_closed():
    """NCCL meets at its first call, and a store writes as it ends: the number could be another file's by then."""
    before = num_open()
    with Meeting.on_this_host(5.0, "gloo") as meeting:
        group = TorchGroup.join(meeting.rendezvous, "alone", Axis(0, 1))
        assert num_open() == before + 2
    assert num_open() == before + 1
    for _ in range(2):
        group.close()
        assert num_open() == before


def num_open():
    links = (os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())
    return sum("lullm-meeting" in link for link in links)
