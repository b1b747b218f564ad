"""An engine whose first steps read matrices in the checkpoint's files: the same tokens, whole weights for all else."""

import shutil

import pytest
import torch
from kit.engine.parts import model_of, store_of, worker_of

from lullm import LLM, SamplingParams
from lullm.device.cpu import CpuDevice
from lullm.device.device import MemoryInfo
from lullm.ops.cpu.library import absence
from lullm.units import GIB
from lullm.weights.reading.mapped import MappedWeights
from lullm.worker import loaded_model, sizing

pytestmark = pytest.mark.skipif(absence() is not None, reason="the native ops are not built here")

OPTIONS = {"num_gpu_blocks_override": 32, "max_model_len": 128}
SETTLE_BEHIND = MappedWeights.settle_behind
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture
def start(qwen3_folder, monkeypatch):
    """`start(**options)`: an engine, as if its model were large. Without `settles` nothing does by itself."""
    opened = []

    def make(settles=False, folder=qwen3_folder, least_bytes=0, **options):
        monkeypatch.setattr(loaded_model, "LEAST_BYTES", least_bytes)
        behind = SETTLE_BEHIND if settles else lambda self, num_threads: None
        monkeypatch.setattr(MappedWeights, "settle_behind", behind)
        opened.append(LLM(str(folder), **OPTIONS, **options))
        return opened[-1]

    yield make
    for llm in opened:
        llm.shutdown()


@pytest.fixture
def expected(start):
    return answer(start(least_bytes=GIB))


def answer(llm):
    return llm.generate([[5, 6, 7]], PARAMS, use_tqdm=False)[0].outputs[0].token_ids


def num_mapped(llm):
    return store_of(llm).num_mapped_bytes


def checksums(llm):
    return [parameter.double().sum().item() for parameter in model_of(llm).parameters()]


@pytest.mark.parametrize(("share", "is_mapped"), [(0, True), (1, False)])
def test_weights_whose_memory_is_there_are_copied(start, monkeypatch, share, is_mapped):
    """Settling made the first decodes slow (20 instead of 26 tok/s), where a copy takes 0.3 s."""
    monkeypatch.setattr(CpuDevice, "resident_bytes", lambda self, arena: share * arena.capacity_bytes)
    assert (store_of(start())._mapped is not None) == is_mapped


def test_an_eager_strategy_copies_all_weights_at_once(start, expected):
    llm = start(safetensors_load_strategy="eager")
    assert store_of(llm)._mapped is None and num_mapped(llm) == 0 and answer(llm) == expected


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_tokens_are_equal_before_and_after_settling(start, request, family):
    folder = request.getfixturevalue(f"{family}_folder")  # llama's head is tied
    whole = start(folder=folder, least_bytes=GIB)
    llm = start(folder=folder)
    assert num_mapped(whole) == 0 < num_mapped(llm)
    matrices = sum(parameter.nbytes for parameter in model_of(llm).parameters() if parameter.dim() == 2)
    assert num_mapped(llm) == matrices
    assert answer(llm) == answer(whole) and num_mapped(llm) == matrices
    worker_of(llm).settle()
    assert num_mapped(llm) == 0 and answer(llm) == answer(whole)
    assert all(map(torch.equal, model_of(llm).parameters(), model_of(whole).parameters()))


@pytest.mark.parametrize("options", [{}, {"swap_space": 0}, {"preemption_mode": "recompute"}], ids=str)
def test_threads_settle_them_beside_steps(start, expected, options):
    """They began behind a measurement, which an engine without a choice between swap and recompute does not make."""
    llm = start(settles=True, **options)
    store = store_of(llm)
    assert answer(llm) == expected
    for thread in store._mapped._threads if store._mapped is not None else ():
        thread.join(10)
    assert answer(llm) == expected and num_mapped(llm) == 0, "a step notices that they have settled"


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("verify", [True, False])
def test_sleep_before_they_have_settled(start, expected, level, verify):
    llm = start(enable_sleep_mode=True, verify_wake=verify)
    assert num_mapped(llm) > 0
    llm.sleep(level=level)
    assert num_mapped(llm) == 0
    llm.wake_up()
    assert answer(llm) == expected


def test_whatever_reads_parameters_settles_them_first(start, expected):
    whole = start(least_bytes=GIB)
    for read in (
        lambda llm: llm.collective_rpc(lambda worker: worker.weights_version()),
        lambda llm: llm.llm_engine.update_weights([("model.norm.weight", model_of(whole).model.norm.weight)]),
        lambda llm: llm.collective_rpc("reload_weights"),
    ):
        llm = start()
        read(llm)
        assert num_mapped(llm) == 0 and answer(llm) == expected
        assert checksums(llm) == checksums(whole)


def test_an_updated_matrix_is_not_read_in_the_file(start):
    llm, whole = start(), start(least_bytes=GIB)
    name, matrix = "model.layers.0.mlp.down_proj.weight", torch.randn(64, 128)
    for each in (llm, whole):
        each.llm_engine.update_weights([(name, matrix)])
    assert answer(llm) == answer(whole)


def test_a_deleted_checkpoint_is_read_on(start, expected, qwen3_folder, tmp_path):
    folder = shutil.copytree(qwen3_folder, tmp_path / "model")
    llm = start(folder=folder)
    shutil.rmtree(folder)
    assert answer(llm) == expected
    worker_of(llm).settle()
    assert answer(llm) == expected


def test_what_does_not_fit_is_copied(start, qwen3_folder):
    for options in ({"quantization": "int8"}, {"dtype": "bfloat16"}, {"load_format": "dummy"}):
        assert num_mapped(start(**options)) == 0


def test_the_kv_cache_leaves_their_memory_free(start, monkeypatch):
    llm = start()
    worker = worker_of(llm)
    free = sizing.kv_memory_bytes(worker.setup, worker.loaded.model)
    monkeypatch.setattr(type(worker.setup.device), "memory_info", lambda self: MemoryInfo(free, 2 * free))
    monkeypatch.setattr(type(worker.setup.device), "resident_bytes", lambda self, arena: 1000)
    seen = []
    monkeypatch.setattr("lullm.worker.worker.num_blocks_within", lambda *args: seen.append(args[-1]) or 1)
    worker.num_available_blocks()
    assert seen == [free - num_mapped(llm) + 1000]
