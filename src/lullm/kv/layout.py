"""The size of a KV block, and the number of blocks in a budget."""

import bisect
import math

from lullm.config.model import ModelConfig
from lullm.config.parallel.share import share_of
from lullm.config.resolved import ResolvedConfig
from lullm.errors import CacheSizeError
from lullm.kv.cache_group import STATE_ITEM_BYTES, CacheLayout, cache_layout, shares_of
from lullm.types.layer_kind import RecurrentState
from lullm.types.parallel.placement import Axis
from lullm.units import GIB, cdiv, format_bytes, round_up

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8_e4m3": 1}

SCALE_BYTES = 2
"""Bytes of the scale after each head's values of each token in an int8 KV cache (`ops.cache.int8_cache`)."""


def cache_layout_of(model: ModelConfig, block_size: int, dtype: str) -> CacheLayout:
    """The cache groups of a model in blocks of `block_size` tokens. Raises UnsupportedError as `cache_layout` does."""
    return _layout(model, slot_bytes(model, block_size, dtype))


def layer_places(model: ModelConfig) -> CacheLayout:
    """As `cache_layout_of`, without the number of blocks in recurrent groups."""
    return _layout(model, None)


def _layout(model: ModelConfig, size: int | None) -> CacheLayout:
    return cache_layout(model.layer_kinds, size, model.kinds_of_stages, model.stage.rank)


def slot_bytes(model: ModelConfig, block_size: int, dtype: str) -> int:
    """Bytes of one layer-slot in one block. `dtype`: as in `kv_dtype`."""
    return model.num_cache_sides * side_len(model, block_size, dtype) * DTYPE_BYTES[dtype] * block_size


def side_len(model: ModelConfig, block_size: int, dtype: str) -> int:
    """Elements of `dtype` that a slot has for the keys of a token, or for its values.

    The largest need of any kind's shares, rounded up to whole rows of equal length in all kinds: 516 where int8 heads
    of 512 and of 256 elements, each with its scale, meet. Where no layer has keys, both sides of a slot have room for
    the state of one layer.
    """
    rows = _rows_of_kinds(model)
    if not rows:
        sizes = [kind.num_elements for kind in model.layer_kinds if isinstance(kind, RecurrentState)]
        if not sizes:
            return 0
        size = max(sizes)
        row_bytes = cdiv(size * STATE_ITEM_BYTES, model.num_cache_sides * block_size)
        return cdiv(round_up(row_bytes, STATE_ITEM_BYTES), DTYPE_BYTES[dtype])
    extra = SCALE_BYTES if dtype == "int8" else 0
    most = max(num_rows * (head_dim + extra) for num_rows, head_dim in rows)
    return round_up(most, math.lcm(*(num_rows for num_rows, _ in rows)))


def _rows_of_kinds(model: ModelConfig) -> set[tuple[int, int]]:
    """By kind of layers: rows of heads in a slot for a token's keys, and the elements of such a head."""
    shares = shares_of(model.layer_kinds)
    layers = ((kind, model.kv_heads(layer)) for layer, kind in enumerate(model.layer_kinds) if kind in shares)
    return {(shares[kind] * heads.num_heads, heads.head_dim) for kind, heads in layers}


def block_bytes(model: ModelConfig, block_size: int, dtype: str) -> int:
    """Bytes of one block: all layer-slots for `block_size` tokens. `dtype`: as in `kv_dtype`."""
    return layer_places(model).num_slots * slot_bytes(model, block_size, dtype)


def draft_block_bytes(config: ResolvedConfig) -> int:
    """Bytes that a draft model adds to each block of a worker; 0: there is none."""
    if config.draft is None:
        return 0
    part = share_of(config.draft.model, Axis(0, config.tensor_parallel_size))
    return block_bytes(part, config.block_size, config.kv_dtype)


def num_blocks_for_len(model: ModelConfig, block_size: int, dtype: str, num_tokens: int) -> int:
    """The fewest blocks with which a sequence can grow to `num_tokens` tokens: in each group all, or the window's.

    Behind as many rows of an encoder as there may be.

    `dtype`: as in `kv_dtype`.
    """
    num_slots = num_tokens + model.num_encoder_slots(block_size)
    return cache_layout_of(model, block_size, dtype).num_blocks_for_len(num_slots, block_size)


def max_len_within(model: ModelConfig, block_size: int, dtype: str, num_blocks: int, limit: int) -> int:
    """The longest sequence, in tokens up to `limit`, that can grow within `num_blocks` blocks."""
    layout, lens = cache_layout_of(model, block_size, dtype), range(1, limit + 1)
    num_slots = model.num_encoder_slots(block_size)
    return bisect.bisect_right(
        lens, num_blocks, key=lambda length: layout.num_blocks_for_len(length + num_slots, block_size)
    )


def num_host_blocks_within(config: ResolvedConfig, model: ModelConfig, num_blocks: int) -> int:
    """Number of host blocks in `swap_space`, at most as many as the device pool has."""
    size = block_bytes(model, config.block_size, config.kv_dtype) + draft_block_bytes(config)
    return min(int(config.swap_space * GIB) // size, num_blocks) if num_blocks else 0


def num_blocks_within(config: ResolvedConfig, model: ModelConfig, available_bytes: int) -> int:
    """Number of KV blocks of a resolved config on a device with `available_bytes` left after the weights.

    An encoder has none.

    Raises:
        CacheSizeError: one sequence of `max_model_len` tokens does not fit, and the user chose that length; or one
            block does not fit.
    """
    if model.family.encoder_only is not None:
        return 0
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    size = block_bytes(model, config.block_size, config.kv_dtype) + draft_block_bytes(config)
    if config.device != "cpu" and config.kv_cache_memory_bytes is None:
        num_blocks = available_bytes // size  # measured for the KV cache alone
    elif config.kv_cache_memory_bytes is not None:
        num_blocks = config.kv_cache_memory_bytes // size
    else:
        # Twice the need of all sequences leaves as much again for cached prefixes; more would slow the start.
        per_seq = num_blocks_for_len(model, config.block_size, config.kv_dtype, config.max_model_len)
        enough = 2 * config.max_num_seqs * per_seq
        # Windows also need room for the chunk of a prompt that is being computed.
        num_windows = sum(group.window is not None for group in layer_places(model).groups)
        enough += num_windows * cdiv(config.max_num_batched_tokens, config.block_size)
        num_blocks = min(int(available_bytes * config.gpu_memory_utilization) // size, enough)
    if num_blocks < 1:
        raise CacheSizeError(
            f"no KV block fits: one takes {format_bytes(size)}, {format_bytes(max(available_bytes, 0))} of memory are "
            f"available; raise kv_cache_memory_bytes or gpu_memory_utilization, or free memory"
        )
    return num_blocks
