"""Engines over a fake accelerator whose memory is the fake driver's."""

import gc

import pytest
from kit.device.fake_device import FAKE_OPS, FakeDevice
from kit.engine.parts import use_device, use_ops

from lullm import LLM
from lullm.arena.arena import Arena
from lullm.arena.pinned import PinnedArena

OPTIONS = {
    "dtype": "float32", "max_model_len": 128, "max_num_seqs": 4, "enable_sleep_mode": True, "enforce_eager": True,
    "num_gpu_blocks_override": 64, "swap_space": 0.001, "keep_backup": True,
}  # fmt: skip


class DriverDevice(FakeDevice):
    """A fake accelerator whose arenas are the fake driver's."""

    def __init__(self, backend):
        super().__init__()
        self.backend = backend

    def new_arena(self, tag, capacity_bytes):
        return Arena(self.backend, tag, capacity_bytes)

    def new_host_arena(self, tag, capacity_bytes):
        return PinnedArena(self.backend, tag, capacity_bytes)

    def resident_bytes(self, arena):
        return arena.mapped_bytes if arena.backend is self.backend else super().resident_bytes(arena)


@pytest.fixture
def build(qwen3_folder, fake, monkeypatch):
    """`build(backend, **options)`: an engine over a fake device; everything is given back at the end of the test, or
    `fake` says so."""
    use_ops(monkeypatch, FAKE_OPS)
    monkeypatch.setattr("lullm.config.agreement.options.refuse_missing_machinery", lambda config: None)
    engines = []

    def make(backend=None, **options):
        use_device(monkeypatch, DriverDevice(backend or fake.build("cuda")))
        engines.append(LLM(str(qwen3_folder), **{**OPTIONS, **options}))
        return engines[-1]

    yield make
    while engines:  # no name here keeps the last one
        engines.pop().llm_engine.shutdown()
    monkeypatch.undo()
    gc.collect()
