"""Speeds of sleep: tried out when nothing is known, measured from then on."""

import resource
import shutil
from types import SimpleNamespace

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


@pytest.fixture
def small_disk(monkeypatch):
    """`small_disk(num_bytes)`: files can have this many bytes, which are said to be free."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def shrink(num_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=num_bytes))

    yield shrink
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_trial_fits_on_a_small_disk(tmp_path, small_disk):
    """A sleep that needs 3 MiB works there, so its forecast must, too."""
    small_disk(5 * MIB)
    assert 0 < SleepSpeeds(CpuDevice(), directory=tmp_path).seconds("save disk", 3 * MIB) < 60


def test_a_full_disk_is_named_with_advice(tmp_path, small_disk):
    small_disk(0)
    with pytest.raises(
        SleepError, match=f"{tmp_path} cannot be written to: .*; give another sleep_dir, or backup='ram'"
    ):
        SleepSpeeds(CpuDevice(), directory=tmp_path).seconds("save disk", 3 * MIB)
