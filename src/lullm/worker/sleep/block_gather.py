"""BlockGather: the contents of some KV blocks, a part at a time, to save them and to put them back.

The blocks in use are scattered over a pool, by layer and side (keys, values). Each part passes through a buffer of some
MiB: it is gathered there to be saved, or restored there to be scattered.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lullm.device.device import Device
from lullm.ops.cache.layer_cache import LayerCache
from lullm.types.sleep import UsedBlocks
from lullm.units import MIB

_PART_BYTES = 16 * MIB
_DEVICE_PART_BYTES = 64 * MIB
"""Size of one part. A device waits some 50 us for the host between two parts; 64 MiB take 1.2 ms over the bus."""


class BlockGather:
    """The blocks in use of two pools, always in the same order.

    Args:
        kv_caches, host_kv_caches: by layer, in memory of the device and in host memory that it can read.
        used: the blocks; negative for `places`: the contents have no place, and are left out.
    """

    def __init__(self, device: Device, kv_caches: list[LayerCache], host_kv_caches: list[LayerCache], used: UsedBlocks):
        self._device = device
        self._part_bytes = _DEVICE_PART_BYTES if device.is_accelerator else _PART_BYTES
        host_caches = host_kv_caches or kv_caches  # without a host pool none of its blocks has a place
        pools = ((kv_caches, used.device, device.new_arena), (host_caches, used.host, device.new_host_arena))
        self._pools = [pool for pool in pools if pool[1]]

    def contents(self) -> Iterator[Tensor]:
        """The parts, all in the same buffer: take each before asking for the next. Blocking. Raises CacheSizeError."""
        for words, ids, room in self._parts():
            torch.index_select(words, 0, ids, out=room)
            self._device.synchronize()  # the caller's copy out of the buffer does not wait for the gather
            yield room

    def places(self, awaited: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """The buffer for each part: fill it before asking for the next; then the part is scattered to its blocks.

        `awaited` gives a tensor back once memory stands behind it.
        """
        for words, ids, room in self._parts():
            yield room
            awaited(words)
            if bool((ids < 0).any()):
                ids, room = ids[ids >= 0], room[ids >= 0]
            words.index_copy_(0, ids, room)
            self._device.synchronize()

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(one layer's keys or values in a pool, ids of some blocks, their buffer); one buffer for all.

        The buffer is in an arena, because memory from malloc does not always go back to the operating system. Values
        are moved as words of one type, since torch does not index every type on every device.
        """
        for caches, block_ids, new_arena in self._pools:
            sides = [side for cache in caches for side in cache.tensors]
            arena = new_arena("gather", max(self._part_bytes, *(side[0].nbytes for side in sides)))
            room = arena.empty((arena.capacity_bytes,), torch.uint8)
            try:
                for side in sides:
                    num_bytes = side[0].nbytes  # a draft model's differ
                    num_at_once = max(self._part_bytes // num_bytes, 1)
                    word = torch.int64 if num_bytes % torch.int64.itemsize == 0 else torch.uint8
                    words = side.flatten(1).view(word)  # [num_blocks, words of a block]
                    for ids in torch.tensor(block_ids, device=side.device).split(num_at_once):
                        yield words, ids, room[: len(ids) * num_bytes].view(word).view(len(ids), -1)
            finally:
                self._device.synchronize()
                arena.close()
