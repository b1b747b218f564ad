"""What a worker takes it gives back: when it ends, and when it could not be built."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from kit.device.fake_device import FAKE_OPS, FakeDevice
from safetensors.torch import load_file, save_file

from lullm.collective.seat import Seat
from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.device.device import MemoryInfo
from lullm.errors import CacheSizeError, ModelLoadError
from lullm.types.sleep import UsedBlocks
from lullm.worker.setup import WorkerSetup
from lullm.worker.worker import Worker

OPTIONS = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 2, "enforce_eager": True}


class CountingDevice(FakeDevice):
    """Remembers its arenas; the one with the tag `refused` is not to be had."""

    def __init__(self, refused=None):
        super().__init__()
        self.refused = refused
        self.arenas = []

    def _count(self, arena):
        self.arenas.append(arena)
        return arena

    def new_arena(self, tag, capacity_bytes):
        if tag == self.refused:
            raise CacheSizeError(f"no room for {tag}")
        return self._count(super().new_arena(tag, capacity_bytes))

    def new_host_arena(self, tag, capacity_bytes):
        if tag == self.refused:
            raise CacheSizeError(f"no room for {tag}")
        return self._count(super().new_host_arena(tag, capacity_bytes))

    def held(self):
        """Tags of the arenas that are not closed."""
        return [arena.tag for arena in self.arenas if arena.state.name != "CLOSED"]


@pytest.fixture
def build(qwen3_folder, monkeypatch):
    monkeypatch.setattr("lullm.worker.setup.select_ops", lambda *args: FAKE_OPS)

    def make(device, folder=qwen3_folder, **options):
        monkeypatch.setattr("lullm.worker.setup.open_device", lambda name, ahead: device)
        model_config = ModelConfig.from_folder(qwen3_folder)
        config = EngineConfig(model=str(folder), **OPTIONS | options).resolve(model_config)
        return Worker(config, model_config, folder)

    return make


def test_shutdown_gives_everything_back_once(build):
    device = CountingDevice()
    worker = build(device)
    assert device.held() == ["weights"]
    worker.initialize_cache(8, 4, 64)
    assert device.held() == ["weights", "kv_cache", "kv_swap"]
    assert set(worker.resident_bytes()) == {"weights", "kv_cache", "kv_swap"}
    worker.shutdown()
    worker.shutdown()
    assert device.held() == []


def test_a_model_that_is_not_there_takes_nothing(build, tmp_path):
    device = CountingDevice()
    with pytest.raises(ModelLoadError):
        build(device, folder=tmp_path)
    assert device.arenas == []


def test_a_model_that_cannot_be_loaded_leaves_nothing(build, tmp_path, qwen3_folder):
    tensors = load_file(qwen3_folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    device = CountingDevice()
    with pytest.raises(ModelLoadError, match=r"missing tensor model\.norm\.weight"):
        build(device, folder=tmp_path)
    assert [arena.tag for arena in device.arenas] == ["weights"] and device.held() == []


def test_weights_that_can_never_fit_are_refused(build):
    """A host's kernel would reserve the memory, and kill the process while it reads the checkpoint."""
    device = CountingDevice()
    device.memory = MemoryInfo(1000, 1000)
    with pytest.raises(CacheSizeError, match=r"the weights take .* as float32, and there are 1000 B of memory"):
        build(device)
    assert device.arenas == []


def test_a_pool_that_cannot_be_had_leaves_the_weights_alone(build):
    device = CountingDevice(refused="kv_swap")
    worker = build(device)
    with pytest.raises(CacheSizeError, match="no room for kv_swap"):
        worker.initialize_cache(8, 4, 64)
    assert device.held() == ["weights"]
    worker.shutdown()
    assert device.held() == []


def test_the_runner_has_the_model_that_trainers_write_into(build):
    worker = build(CountingDevice())
    worker.initialize_cache(8, 0, 64)
    model, norm = worker.model_runner.model, "model.norm.weight"
    version = worker.weights_version()
    assert model.load_weights([(norm, model.model.norm.weight.clone())]) == {norm}
    assert worker.weights_version() == version + 1 and worker.modified_weights() == [norm]
    assert worker.has_pushed_weights()
    worker.shutdown()


def test_one_size_of_a_block(build):
    """The one by which pools are sized, and the one by which a sleep is planned."""
    from lullm.worker.sleep.block_gather import BlockGather

    worker = build(CountingDevice())
    worker.initialize_cache(8, 4, 64)
    used = UsedBlocks([1, 2, 5], [0])
    gather = BlockGather(worker.setup.device, worker.pools.device, worker.pools.host, used)
    assert sum(part.nbytes for part in gather.contents()) == 4 * worker.pools.block_bytes
    worker.shutdown()


@pytest.mark.parametrize("lacks", [None, "ops", "model", "tokens"])
def test_what_records_decodes(lacks):
    """Ops that never wait, and layers of lullm's own that draw tokens."""
    ops = replace(FAKE_OPS, is_recordable=lacks != "ops")
    model_config = SimpleNamespace(generates=lacks != "tokens", foreign={} if lacks == "model" else None)
    setup = WorkerSetup(SimpleNamespace(enforce_eager=False), model_config, FakeDevice(), ops, None, Seat())
    assert setup.records_graphs == (lacks is None)


def test_a_device_that_has_failed_keeps_no_memory_and_hides_no_error(build, caplog):
    """After an illegal access every call to a GPU raises; `shutdown` raised, too, and closed nothing."""
    device = CountingDevice()
    worker = build(device)
    worker.initialize_cache(4, 4, 64)

    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    device.synchronize = device.trim = fail
    worker.shutdown()
    assert device.held() == [] and "an illegal memory access" in caplog.text
