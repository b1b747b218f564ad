"""The bar of what takes long: bytes and rate on a terminal, nothing elsewhere."""

import io

import pytest
from safetensors.torch import save_file

from lullm.ops.selection import TORCH_CPU_OPS
from lullm.weights.loader import load_weights
from lullm.weights.reading import progress
from lullm.weights.reading.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """`terminal()`: standard error is a terminal from here on. pytest puts its own in place before a test starts."""

    def put():
        monkeypatch.setattr(progress, "_DELAY_S", 0)
        monkeypatch.setattr(progress, "_INTERVAL_S", 0)
        screen = Terminal()
        monkeypatch.setattr("sys.stderr", screen)
        return screen

    return put


def test_on_a_terminal(terminal):
    screen = terminal()
    with Progress("weights", 3_000_000) as bar:
        bar.add(1_000_000)
        bar.add(2_000_000)
    drawn = screen.getvalue()
    assert "weights" in drawn and "3.00M/3.00M" in drawn and "B/s" in drawn
    assert drawn.endswith("\r"), "it goes away"


def test_elsewhere(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    for stream in (log, None):  # None: the parent process has closed it
        monkeypatch.setattr("sys.stderr", stream)
        with Progress("weights", 10) as bar:
            bar.add(10)
    assert log.getvalue() == ""


def test_loading_reaches_the_end(terminal, tmp_path, make_model, checkpoint):
    """All bytes of the file are counted, but for its header."""
    save_file(checkpoint, tmp_path / "model.safetensors")
    screen = terminal()
    load_weights(make_model(), tmp_path, TORCH_CPU_OPS, 2)
    tensors = sum(tensor.nbytes for tensor in checkpoint.values())
    assert f"{tensors / 1000:.1f}k/" in screen.getvalue()
