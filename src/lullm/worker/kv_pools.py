"""KVPools: the KV blocks of one worker, on its device and in host memory, as views into arenas."""

from contextlib import ExitStack
from dataclasses import dataclass

import torch

from lullm.arena.arena import ALIGNMENT, Arena
from lullm.arena.workspace import Workspace
from lullm.kv.layout import block_bytes, layer_places, side_len
from lullm.log import get_logger
from lullm.ops.cache.float8_cache import FLOAT8
from lullm.ops.cache.layer_cache import LayerCache
from lullm.step.graphs import workspace_bytes
from lullm.units import format_bytes
from lullm.worker.setup import WorkerSetup

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KVPools:
    """Both pools by the layer-slots of a block, and the workspace of a CPU's recorded decodes. All of it sleeps
    together.

    `arenas`: all of this memory, with the tags 'kv_cache', 'kv_swap' and 'graphs'. `draft`: the part of the same blocks
    in the same arenas that belongs to the draft model; None: there is none.
    """

    device: list[LayerCache]
    host: list[LayerCache]
    workspace: Workspace | None
    arenas: list[Arena]
    draft: "KVPools | None" = None

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers, those of a draft model included, the same in both pools."""
        return sum(side[0].nbytes for cache in self.all_device for side in cache.tensors)

    @property
    def all_device(self) -> list[LayerCache]:
        """The layer-slots on the device, those of a draft model included."""
        return self.device if self.draft is None else self.device + self.draft.device

    @property
    def all_host(self) -> list[LayerCache]:
        """The same in host memory."""
        return self.host if self.draft is None else self.host + self.draft.host

    def close(self) -> None:
        """Release the memory. Idempotent."""
        for arena in self.arenas:
            arena.close()


def map_pools(setup: WorkerSetup, num_blocks: int, num_host_blocks: int, draft: WorkerSetup | None = None) -> KVPools:
    """Map pools of these sizes. A CPU takes memory when blocks are first written. Blocking. Raises CacheSizeError.

    `draft`: the setup of a draft model, which has a part of each block.
    """
    setups = [setup] if draft is None else [setup, draft]
    arenas: list[Arena] = []
    with ExitStack() as undo:

        def keep(arena: Arena) -> Arena:
            undo.callback(arena.close)
            arenas.append(arena)
            return arena

        new_arena, room = setup.device.new_arena, sum(_pool_bytes(each, num_blocks) for each in setups)
        arena = keep(new_arena("kv_cache", max(room, ALIGNMENT)))  # an encoder's holds nothing
        device = [_map_blocks(each, arena, num_blocks) for each in setups]
        host: list[list[LayerCache]] = [[] for _ in setups]
        if num_host_blocks:
            room = sum(_pool_bytes(each, num_host_blocks) for each in setups)
            arena = keep(setup.device.new_host_arena("kv_swap", room))
            host = [_map_blocks(each, arena, num_host_blocks) for each in setups]
        workspace = None
        recorded = [each.model_config for each in setups if each.records_graphs]
        if recorded and not setup.device.records_ahead:  # the models run one after the other
            room = max(workspace_bytes(model, setup.config.max_num_seqs) for model in recorded)
            workspace = Workspace(keep(new_arena("graphs", room)))
        undo.pop_all()
    of_draft = None if draft is None else KVPools(device[1], host[1], workspace, [])
    return KVPools(device[0], host[0], workspace, arenas, of_draft)


def block_shape(setup: WorkerSetup) -> tuple[tuple[int, int, int], torch.dtype]:
    """Shape and type of one block in the keys, or the values, of one slot: one row per token (`LayerCache.share`)."""
    config = setup.config
    dtype = {"int8": torch.int8, "fp8_e4m3": FLOAT8}.get(config.kv_dtype, setup.dtype)
    return (config.block_size, 1, side_len(setup.model_config, config.block_size, config.kv_dtype)), dtype


def loose_blocks(setup: WorkerSetup, num_blocks: int) -> list[LayerCache]:
    """Blocks on the device outside any pool, for steps before the pools exist."""
    shape, dtype = block_shape(setup)
    return [
        LayerCache(*torch.zeros((2, num_blocks, *shape), dtype=dtype, device=setup.device.torch_device))
        for _ in range(layer_places(setup.model_config).num_slots)
    ]


def _pool_bytes(setup: WorkerSetup, num_blocks: int) -> int:
    """Bytes of a pool's arena: its blocks, and room for the alignment of each slot's two tensors."""
    config, model = setup.config, setup.model_config
    size = num_blocks * block_bytes(model, config.block_size, config.kv_dtype)
    return size + 2 * ALIGNMENT * layer_places(model).num_slots


def _map_blocks(setup: WorkerSetup, arena: Arena, num_blocks: int) -> list[LayerCache]:
    of_block, dtype = block_shape(setup)
    shape = (num_blocks, *of_block)
    num_sides, num_slots = setup.model_config.num_cache_sides, layer_places(setup.model_config).num_slots
    sides = ([arena.empty(shape, dtype) for _ in range(num_sides)] for _ in range(num_slots))
    caches = [LayerCache(of_slot[0], of_slot[-1]) for of_slot in sides]
    logger.info(
        "%s: %d blocks of %d tokens, %s", arena.tag, num_blocks, setup.config.block_size, format_bytes(arena.used_bytes)
    )
    return caches
