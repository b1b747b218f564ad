"""BlockGather: the contents of some KV blocks, a part at a time, so that they can be saved and put back.

Blocks in use lie scattered over a pool, by layer and by side. They pass through a room of some MiB: gathered there to
be copied on, or copied there to be spread.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from lullm.device.device import Device
from lullm.ops.layer_cache import LayerCache
from lullm.types.sleep import UsedBlocks
from lullm.units import MIB

_PART_BYTES = 16 * MIB
_DEVICE_PART_BYTES = 64 * MIB
"""Of what is gathered at once. A device waits for the host between two such parts: some 50 us, while 64 MiB take 1.2 ms
over the bus."""


class BlockGather:
    """The blocks in use of two pools, in an order that is the same every time.

    Args:
        kv_caches, host_kv_caches: by layer, in memory of the device and in host memory that it can read.
    """

    def __init__(self, device: Device, kv_caches: list[LayerCache], host_kv_caches: list[LayerCache], used: UsedBlocks):
        self._device = device
        self._part_bytes = _DEVICE_PART_BYTES if device.is_accelerator else _PART_BYTES
        pools = ((kv_caches, used.device, device.new_arena), (host_kv_caches, used.host, device.new_host_arena))
        self._pools = [pool for pool in pools if pool[1]]

    def contents(self) -> Iterator[Tensor]:
        """Parts, each in the same room: to be taken before the next is asked for. Blocking. Raises CacheSizeError."""
        for words, ids, room in self._parts():
            torch.index_select(words, 0, ids, out=room)
            self._device.synchronize()  # the copy out of the room starts without waiting
            yield room

    def places(self) -> Iterator[Tensor]:
        """Room for each part, to be filled before the next is asked for; it goes to its blocks then."""
        for words, ids, room in self._parts():
            yield room
            words.index_copy_(0, ids, room)
            self._device.synchronize()

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(one layer's keys or values in a pool, ids of some blocks, room for those); the room is the same each time.

        The room is an arena, because memory from malloc does not always go back to the operating system. Values are
        moved as words of one kind: torch does not index every type on every device.
        """
        for caches, block_ids, new_arena in self._pools:
            num_bytes = caches[0].key[0].nbytes
            num_at_once = max(self._part_bytes // num_bytes, 1)
            word = torch.int64 if num_bytes % torch.int64.itemsize == 0 else torch.uint8
            arena = new_arena("gather", max(self._part_bytes, num_bytes))
            room = arena.empty((arena.capacity_bytes,), torch.uint8)
            try:
                for side in (side for cache in caches for side in cache.tensors):
                    words = side.flatten(1).view(word)  # [num_blocks, words of a block]
                    for ids in torch.tensor(block_ids, device=side.device).split(num_at_once):
                        yield words, ids, room[: len(ids) * num_bytes].view(word).view(len(ids), -1)
            finally:
                self._device.synchronize()
                arena.close()
