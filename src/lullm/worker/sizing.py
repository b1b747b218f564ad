"""Sizing: measures a worker's memory for KV blocks, and its speed of copying them, before any request."""

import gc
from collections.abc import Sequence
from dataclasses import replace

import torch

from lullm.config.vision.vision import VisionConfig
from lullm.errors import CacheSizeError
from lullm.kv.layout import block_bytes, cache_layout_of
from lullm.log import get_logger
from lullm.machine.memory import address_room_bytes
from lullm.models.protocol import Model
from lullm.step.graphs import decode_sizes
from lullm.types.draw import Draw, DrawParams
from lullm.types.packed import PackedInts, pack
from lullm.types.step import Span, StepPlan
from lullm.types.vision.given import GivenRows
from lullm.types.vision.tile import Tile
from lullm.units import GIB, MIB, cdiv, format_bytes
from lullm.worker.kv_pools import KVPools, loose_blocks
from lullm.worker.probe import behind_encoder, largest_input, longest_window
from lullm.worker.setup import WorkerSetup

logger = get_logger(__name__)

_GRAPH_BYTES = 4 * MIB
"""Rough memory of the driver for a recorded graph: a node for every kernel of every layer."""

_NUM_MEASURED_SLOTS = 1
"""Layer-slots that are copied to measure the speed. Each keeps a huge page or two in host memory."""

_NUM_MEASURED_TOKENS = 64
"""The blocks of so many tokens are copied."""


def kv_memory_bytes(setup: WorkerSetup, model: Model, bytes_to_come: int = 0) -> int:
    """Memory for the KV cache. Blocking.

    On a CPU: the available memory without `bytes_to_come`, within `ulimit -v`.
    On a GPU: `gpu_memory_utilization` of all memory, less the memory in use after a run of the largest batch (torch's
    allocator keeps its activations), less an estimate for the graphs. Raises CacheSizeError: nothing is left.
    """
    config, device = setup.config, setup.device
    if not device.is_accelerator:
        free, room = device.memory_info().free_bytes - bytes_to_come, address_room_bytes()
        # Both pools are reserved; the host's is at most as large as the other.
        return free if room is None else min(free, max(room - int(config.swap_space * GIB), room // 2))
    gc.collect()  # until then an engine that was dropped without `shutdown` holds its graphs
    device.trim()
    info = device.memory_info()
    if config.num_gpu_blocks_override is not None or config.kv_cache_memory_bytes is not None:
        return info.free_bytes
    largest = _profile(setup, model, max(config.max_num_batched_tokens // config.max_num_seqs, 1))
    graphs = 0
    if setup.records_graphs:
        graphs = _profile(setup, model, 1) + _GRAPH_BYTES * len(decode_sizes(device, config.max_num_seqs))
    info = device.memory_info()
    taken = info.total_bytes - info.free_bytes
    allowed = int(info.total_bytes * config.gpu_memory_utilization)
    available = allowed - taken - graphs
    logger.info(
        "memory: %s in all, %s taken (activations up to %s), %s for graphs, %s left for the KV cache",
        *map(format_bytes, (info.total_bytes, taken, largest, graphs, max(available, 0))),
    )
    if available <= 0:
        raise CacheSizeError(
            f"no room for a KV cache: gpu_memory_utilization={config.gpu_memory_utilization} of "
            f"{format_bytes(info.total_bytes)} is {format_bytes(allowed)}, {format_bytes(taken)} are taken (weights, "
            f"activations, and what other engines and processes hold on this GPU), {format_bytes(graphs)} are for "
            "graphs; raise it, end the others, or give kv_cache_memory_bytes"
        )
    return available


def _profile(setup: WorkerSetup, model: Model, query_len: int) -> int:
    """Peak memory, beside weights and KV cache, of a step with `max_num_seqs` spans of `query_len` tokens, and a tile
    for the tower, and as many given rows as are kept.

    All spans overwrite each other in one block. This is harmless, since the tokens are dropped.
    """
    config = setup.config
    runner = setup.new_model_runner(model, loose_blocks(setup, 1), [])
    query_len = min(query_len, config.max_model_len)
    tokens, blocks = pack([0] * query_len), _tables(setup, [0] * cdiv(query_len, config.block_size))
    params, model_config = DrawParams(temperature=1.0, top_p=0.9), setup.model_config
    pooled_rows = None if model_config.pooler is None else (0, query_len)
    spans = []
    for number in range(min(config.max_num_seqs, config.max_num_batched_tokens // query_len)):
        draws = (Draw(number, query_len - 1, params),) if model_config.generates else ()
        spans.append(Span(number, 0, tokens, blocks, draws, pooled_rows=pooled_rows, sums_pooled=False))
    vision = setup.model_config.vision
    tiles: list[Tile | GivenRows] = [] if vision is None else [_largest_tile(vision, config.max_model_len)]
    if setup.model_config.hearing is not None:
        tiles.append(longest_window(setup.model_config.hearing))
    if (encoder := setup.model_config.encoder) is not None:
        tiles, spans = [largest_input(encoder)], behind_encoder(setup, spans)
    if config.takes_rows:
        num_bytes = config.max_num_batched_tokens * setup.model_config.hidden_size * setup.dtype.itemsize
        tiles.append(GivenRows.of(config.max_num_batched_tokens, config.dtype, bytes(num_bytes)))
    return setup.device.peak_bytes(lambda: runner.launch(StepPlan(spans, tiles=tiles)).result())


def _largest_tile(vision: VisionConfig, max_model_len: int) -> Tile:
    """A black tile, as large as any whose rows fit into a prompt."""
    height, width = vision.picture.largest(max_model_len * vision.picture.edge**2)
    if vision.video is None:
        return Tile.of(height, width, bytes(3 * height * width), vision.picture.largest_grid)
    form = vision.video.form
    frames = replace(form.frame, max_pixels=form.most_pixels)
    height, width = max((height, width), frames.largest(max_model_len * frames.edge**2))
    return Tile.of(height, width, bytes(3 * form.num_at_once * height * width), num_frames=form.num_at_once)


def measure_copy_speed(setup: WorkerSetup, pools: KVPools) -> float:
    """Bytes per second between the pools, from copies of a few blocks. Blocking, some milliseconds.

    Writes into the first blocks of the host's pool, which must be free. The scheduler corrects it with later steps.
    """
    config, num_slots = setup.config, min(_NUM_MEASURED_SLOTS, len(pools.device))
    num_blocks = cdiv(_NUM_MEASURED_TOKENS, config.block_size)
    num_blocks = min(num_blocks, pools.device[0].num_blocks, pools.host[0].num_blocks)
    pairs = [(block_id, block_id) for block_id in range(num_blocks)]
    for _ in range(2):  # the first copy meets cold kernels and untouched pages
        swap_s = _time_swap(setup, pools, num_slots, pairs)
    size = len(pairs) * block_bytes(setup.model_config, config.block_size, config.kv_dtype)
    return size * num_slots // len(pools.device) / max(swap_s, 1e-9)


def _tables(setup: WorkerSetup, block_ids: Sequence[int]) -> tuple[PackedInts, ...]:
    """The same blocks for all groups, and one for a whole recurrent state; their contents are dropped."""
    config = setup.config
    groups = cache_layout_of(setup.model_config, config.block_size, config.kv_dtype).groups
    return tuple(pack(block_ids if group.keeps_tokens else [0] * group.num_state_blocks) for group in groups)


def _time_swap(setup: WorkerSetup, pools: KVPools, num_slots: int, pairs: list[tuple[int, int]]) -> float:
    device = setup.device

    def swap() -> tuple[object, object]:
        started = device.mark()
        with torch.inference_mode():
            setup.ops.swap_blocks(pools.device[:num_slots], pools.host[:num_slots], pairs)
        return started, device.mark()

    return device.seconds_between(*device.start(swap).result())
