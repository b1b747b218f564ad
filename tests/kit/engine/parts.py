"""The private parts of an engine that tests look at or replace: the one file that knows where they are.

Every function takes an `LLM`, an `LLMEngine` or an `AsyncLLMEngine`.
"""

import contextlib

import pytest

from lullm import LLM

_BUILDER = "lullm.worker.setup"
"""The module that opens the device and selects the ops."""


def engine_of(llm):
    """The `LLMEngine` inside."""
    if isinstance(llm, LLM):
        return llm.llm_engine
    return getattr(llm, "_engine", llm)


def executor_of(llm):
    return engine_of(llm).model_executor


def worker_of(llm):
    return executor_of(llm).driver_worker


def runner_of(llm):
    """What runs the plans."""
    return worker_of(llm).model_runner


def device_of(llm):
    return worker_of(llm).setup.device


def ops_of(llm):
    """The table of ops that the engine computes with."""
    return worker_of(llm).setup.ops


def model_of(llm):
    return runner_of(llm).model


def store_of(llm):
    """The `WeightStore`."""
    return worker_of(llm).loaded.store


def arenas_of(llm):
    """Arenas by tag."""
    return {arena.tag: arena for arena in worker_of(llm).arenas}


def kv_caches_of(llm):
    """The `LayerCache`s of the device pool, by the layer-slots of a block."""
    return worker_of(llm).pools.device


def kv_scales_of(llm):
    """The `KVScales` by layer; empty if the cache is not fp8."""
    return worker_of(llm).loaded.kv_scales


def threads_of(llm):
    """The `StepThreads`."""
    return worker_of(llm).setup.threads


def graphs_of(llm):
    """The `DecodeGraphs`."""
    return runner_of(llm).graphs


def backups_of(llm):
    """Backups of what is asleep, by tag."""
    return {tag: saved.backup for tag, saved in worker_of(llm)._sleeper._backups.saved.items()}


def block_space_of(llm):
    return engine_of(llm)._block_space


def scheduler_of(llm):
    return engine_of(llm)._scheduler


def steps_in_flight_of(llm):
    return engine_of(llm)._loop._in_flight


def open_requests_of(llm):
    """Requests whose outputs are not complete, by id."""
    return engine_of(llm)._loop.output_processor._requests


def break_steps(llm):
    """Let every further step raise."""
    worker_of(llm).model_runner = None


@contextlib.contextmanager
def weights_filled_by(llm, fill):
    """For a while, `fill(original)` stands where the weights are read from the checkpoint."""
    store = store_of(llm)
    original = store._fill
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_fill", lambda checkpoint: fill(lambda: original(checkpoint)))
        yield


@contextlib.contextmanager
def checkpoint_moved(llm, folder):
    """For a while, the engine reads its weights from this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_of(llm), "checkpoint", folder)
        yield


def use_ops(monkeypatch, ops):
    """Engines that are built from now on compute with this table."""
    monkeypatch.setattr(f"{_BUILDER}.select_ops", lambda *args: ops)


def use_device(monkeypatch, device):
    """Engines that are built from now on run on this device."""
    monkeypatch.setattr(f"{_BUILDER}.open_device", lambda name, ahead: device)


def use_host(monkeypatch):
    """Engines that are built from now on open their device themselves."""
    from lullm.device.choice import open_device

    monkeypatch.setattr(f"{_BUILDER}.open_device", open_device)
