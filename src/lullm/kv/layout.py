"""How large a KV block is, and how many of them a budget buys."""

from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.errors import CacheSizeError
from lullm.units import GIB, cdiv, format_bytes

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

CPU_KV_SHARE = 0.25
"""Share of the available memory that the KV cache takes on a CPU when no budget is given: the page cache, and the
programs a CPU is shared with, need the rest more than a cache does."""


def block_bytes(model: ModelConfig, block_size: int, dtype: str) -> int:
    """Bytes of one block: keys and values of `block_size` tokens in all layers."""
    per_token = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * DTYPE_BYTES[dtype]
    return per_token * block_size


def num_host_blocks_within(config: EngineConfig, model: ModelConfig, num_blocks: int) -> int:
    """Number of host blocks that `swap_space` buys; no more than the device pool has, since more is never of use."""
    return min(int(config.swap_space * GIB) // block_bytes(model, config.block_size, config.dtype), num_blocks)


def num_blocks_within(config: EngineConfig, model: ModelConfig, available_bytes: int) -> int:
    """Number of KV blocks of a resolved config on a device with `available_bytes` left after the weights.

    Raises:
        CacheSizeError: not even one sequence of `max_model_len` tokens fits, and the user asked for that length; or
            not even one block does.
    """
    assert config.max_model_len is not None, "resolve the config first"
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    size = block_bytes(model, config.block_size, config.dtype)
    if config.kv_cache_memory_bytes is not None:
        num_blocks = config.kv_cache_memory_bytes // size
    else:
        # Twice what all seats can fill leaves as much again for prefixes worth keeping; more would cost start-up time.
        enough = 2 * config.max_num_seqs * cdiv(config.max_model_len, config.block_size)
        num_blocks = min(int(available_bytes * CPU_KV_SHARE) // size, enough)
    if num_blocks < 1:
        raise CacheSizeError(
            f"no KV block fits: one takes {format_bytes(size)}, {format_bytes(available_bytes)} of memory are "
            "available; raise kv_cache_memory_bytes or free memory"
        )
    return num_blocks
