"""Speeds of sleep: tried out when nothing is known, measured from then on."""

import pytest

from lullm.device.cpu import CpuDevice
from lullm.errors import SleepError
from lullm.units import MIB
from lullm.worker.sleep.speed import SleepSpeeds


@pytest.mark.parametrize("what", ["save ram", "restore ram", "save disk", "restore disk", "release", "pin"])
def test_what_was_never_done_is_tried_out(tmp_path, what):
    speeds = SleepSpeeds(CpuDevice(), directory=tmp_path)
    one, two = speeds.seconds(what, 64 * MIB), speeds.seconds(what, 128 * MIB)
    assert 0 < one < 60 and two == pytest.approx(2 * one)
    assert list(tmp_path.iterdir()) == []


def test_the_last_measurement_counts(tmp_path):
    speeds = SleepSpeeds(CpuDevice(), directory=tmp_path / "nowhere")
    assert speeds.seconds("save disk", 0) == 0
    with pytest.raises(SleepError, match="nowhere"):
        speeds.seconds("save disk", 1)
    speeds.observe("save disk", 100 * MIB, 2.0)
    assert speeds.seconds("save disk", 50 * MIB) == pytest.approx(1.0)
    speeds.observe("save disk", 100 * MIB, 4.0)
    assert speeds.seconds("save disk", 50 * MIB) == pytest.approx(2.0)
    speeds.observe("save disk", 1000, 4.0)
    assert speeds.seconds("save disk", 50 * MIB) == pytest.approx(2.0), "too little says nothing"
