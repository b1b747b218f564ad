"""A worker's part of a hibernation: its share of the KV blocks in a file that another process can read.

The file has the chunks of a backup on disk, with checksums that do not depend on the process.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from lullm.arena.backup import Backup, Manifest
from lullm.arena.checksum import Xxh3Digest
from lullm.arena.chunk_store import FileStore
from lullm.device.device import Device
from lullm.errors import HibernationError, WakeUpError
from lullm.nn.kv_scale import KVScales
from lullm.types.hibernation.report import BlockFile
from lullm.types.sleep import UsedBlocks
from lullm.worker.kv_pools import KVPools
from lullm.worker.sleep.block_gather import BlockGather


@torch.inference_mode()
def write_blocks(device: Device, pools: KVPools, scales: Sequence[KVScales], path: Path, used: UsedBlocks) -> BlockFile:
    """Write the blocks to a new file, in the order of `used`. Blocking: the disk has them when this returns.

    Raises OSError: for example, the disk is full, or the file exists.
    """
    device.synchronize()
    store = FileStore.create(path)
    backup = _backup(store, pools)
    try:
        backup.save(BlockGather(device, pools.device, pools.host, used).contents(), in_turn=True)
        store.sync()
    finally:
        backup.close()
    found = tuple(tuple(tuple(side.tolist()) for side in (each.k_scale, each.v_scale)) for each in scales)
    return BlockFile(backup.manifest.lens, backup.manifest.checksums, found)


@torch.inference_mode()
def read_blocks(
    device: Device, pools: KVPools, scales: Sequence[KVScales], path: Path, used: UsedBlocks, file: BlockFile
) -> int:
    """Put the file's blocks into the places of `used`; negative: into none. Blocking. Returns the bytes.

    Raises HibernationError: the file cannot be read, or is not what was written; some blocks are overwritten.
    """
    device.synchronize()
    try:
        backup = _backup(FileStore.open(path), pools, Manifest(file.lens, file.checksums))
        try:
            places = BlockGather(device, pools.device, pools.host, used).places(lambda tensor: tensor)
            backup.restore(places, in_turn=True)
        finally:
            backup.close()
    except (OSError, WakeUpError) as error:
        raise HibernationError(f"{path} is damaged or cannot be read: {error}") from None
    if used.device or used.host:
        if len(scales) != len(file.scales):
            raise HibernationError(f"{path} has scales of {len(file.scales)} layers, the model of {len(scales)}")
        for each, sides in zip(scales, file.scales, strict=True):
            for buffer, values in zip((each.k_scale, each.v_scale), sides, strict=True):
                buffer.copy_(torch.tensor(values, dtype=torch.float32))
    return file.num_bytes


def _backup(store: FileStore, pools: KVPools, manifest: Manifest | None = None) -> Backup:
    backend = pools.arenas[0].backend
    return Backup(store, "the KV cache", Xxh3Digest, backend, manifest=manifest)
