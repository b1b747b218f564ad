"""Graphs: launches with the arguments of their recording, which a replay runs again."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map_only

from fake_cuda.allocator import storage_behind
from fake_cuda.tensors import Present, address_of, spoil_storage, unseen


@dataclass(frozen=True)
class _Frozen:
    """A tensor outside of the graph's pool, by its address: a graph does not keep its memory."""

    storage: StorageWeakRef
    dtype: torch.dtype
    geometry: tuple

    def thaw(self):
        storage = storage_behind(self.storage)
        if storage is None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered (a graph uses freed memory)")
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.geometry)


@dataclass
class _Launch:
    func: Any
    arguments: Any  # a tree with `_Frozen`
    results: list  # plain; [] if the function writes in place
    read: list
    written: list


@dataclass
class Recording:
    """What runs between the begin and the end of a capture."""

    pool: object
    thread: int
    launches: list = field(default_factory=list)
    storages: dict = field(default_factory=dict)  # of the pool: address -> storage

    def own(self, tensor):
        storage = tensor.untyped_storage()
        self.storages[storage.data_ptr()] = storage

    def add(self, func, args, kwargs, results, read, written):
        """`args` and `kwargs` hold plain tensors."""
        with unseen():
            for tensor in results:
                self.own(tensor)
            arguments = tree_map_only(torch.Tensor, self._freeze, (args, kwargs))
        addresses = [address_of(t) for t in read], [address_of(t) for t in written]
        self.launches.append(_Launch(func, arguments, results, *addresses))

    def _freeze(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self.storages:
            return tensor
        return _Frozen(StorageWeakRef(storage), tensor.dtype, (tensor.storage_offset(), tensor.size(), tensor.stride()))


class FakeGraph:
    """`recording` None: nothing was recorded."""

    def __init__(self, keep_graph=False):
        self.recording, self.pool = None, None

    def replay(self):
        gpu = Present.gpu
        if self.recording is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        assert not gpu.is_capturing
        gpu.num_replays += 1
        with unseen():
            self._spoil_the_others()
            for launch in self.recording.launches:
                gpu.order.touch(gpu.stream, launch.read, launch.written)
                args, kwargs = tree_map_only(_Frozen, _Frozen.thaw, launch.arguments)
                found = launch.func(*args, **kwargs)
                if launch.results:
                    for old, new in zip(launch.results, _tensors(found), strict=True):
                        if old.data_ptr() != new.data_ptr():
                            old.copy_(new)

    def _spoil_the_others(self):
        """They lie in the same memory."""
        for other in Present.gpu.allocator.graphs(self.pool):
            if other is not self and other.recording is not None:
                for storage in other.recording.storages.values():
                    spoil_storage(storage)

    def __del__(self):
        if Present.gpu is not None and Present.gpu.is_capturing:
            Present.gpu.order.note("a graph is given back while another is recorded")


def _tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def record(graph, pool=None, stream=None, capture_error_mode="global"):
    """Stands for `torch.cuda.graph`."""
    gpu = Present.gpu
    gpu.begin_capture(graph, pool if pool is not None else object())
    try:
        with gpu.use_stream(stream or gpu.new_stream()):
            gpu.stream.wait_stream(gpu.default_stream)
            yield
            graph.recording = gpu.recording
    finally:
        gpu.recording = None
