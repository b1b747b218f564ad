"""Torch's allocator in numbers: what is allocated, what it keeps, and the private pools of graphs."""

import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_ROUND = 512


class Allocator:
    """Counts the storages on the device, but for arenas'.

    A freed block stays reserved until `empty_cache`; what a pool of graphs has reserved, until its last graph is gone.
    """

    def __init__(self):
        self._live = {}  # address -> (weak reference, bytes, pool)
        self._reserved = 0
        self._pools = {}  # pool -> (bytes reserved, weak set of its graphs)
        self.peak = 0

    def note(self, storage, pool=None):
        """A new storage, in the pool of a graph that is being recorded, or None."""
        self._sweep()
        size = (storage.nbytes() + _ROUND - 1) // _ROUND * _ROUND
        self._live[storage.data_ptr()] = (StorageWeakRef(storage), size, pool)
        self.peak = max(self.peak, self.allocated)
        if pool is None:
            self._reserved = max(self._reserved, self._taken(None))
        else:
            reserved, graphs = self._pools[pool]
            self._pools[pool] = max(reserved, self._taken(pool)), graphs

    def begin(self, pool, graph):
        self._pools.setdefault(pool, (0, weakref.WeakSet()))[1].add(graph)

    def graphs(self, pool):
        return list(self._pools[pool][1])

    @property
    def allocated(self):
        self._sweep()
        return sum(size for _, size, _ in self._live.values())

    @property
    def reserved(self):
        """Graphs' pools included."""
        self._pools = {pool: held for pool, held in self._pools.items() if len(held[1])}
        return self._reserved + sum(reserved for reserved, _ in self._pools.values())

    def reset_peak(self):
        self.peak = self.allocated

    def empty_cache(self):
        self._reserved = self._taken(None)

    def _taken(self, pool):
        return sum(size for _, size, of in self._live.values() if of is pool)

    def _sweep(self):
        self._live = {address: held for address, held in self._live.items() if not held[0].expired()}


def storage_behind(reference):
    """The storage, or None if it was freed."""
    found = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return None if found is None or found._cdata == 0 else found
