"""Assembly: refuses options that no engine has; sizes the KV cache and makes a scheduler over its blocks."""

import dataclasses
import os
import time

from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.config.parallel.cut import on_stage
from lullm.config.parallel.share import share_of
from lullm.config.resolved import ResolvedConfig
from lullm.errors import CacheSizeError, ConfigError, UnsupportedError
from lullm.executor.executor import Executor
from lullm.kv.block_space import BlockSpaceManager
from lullm.kv.layout import block_bytes, cache_layout_of, draft_block_bytes, max_len_within, num_blocks_for_len
from lullm.log import get_logger
from lullm.sched.guess.opening import open_guesser
from lullm.sched.plan_builder import SchedulerLimits, SchedulingRules
from lullm.sched.preemption import PreemptionPolicy, Speeds
from lullm.sched.scheduler import Scheduler
from lullm.types.parallel.placement import Axis
from lullm.units import format_bytes

logger = get_logger(__name__)


def check_options(config: EngineConfig, has_thread: bool) -> None:
    """Check the options of an `LLMEngine`. Raises ConfigError, UnsupportedError."""
    if config.data_parallel_size > 1:
        raise UnsupportedError(
            f"data_parallel_size={config.data_parallel_size} is for LLM, AsyncLLMEngine and `lullm serve`, which start "
            "several engines; an LLMEngine is one"
        )
    (_check_threaded if has_thread else check_threadless)(config)
    if config.sleep_dir is not None:
        folder = os.path.expanduser(config.sleep_dir)
        if not os.path.isdir(folder):
            raise ConfigError(f"sleep_dir: {config.sleep_dir} is not a folder that exists")
        if not os.access(folder, os.W_OK | os.X_OK):  # otherwise the first sleep would fail, hours later
            raise ConfigError(f"sleep_dir: {config.sleep_dir} may not be written to")


def check_threadless(config: EngineConfig) -> None:
    """Check that these options need no thread of the engine's own. Raises ConfigError otherwise."""
    idle = config.idle
    for name, wanted in (("sleep_after", bool(idle.rungs)), ("auto_wake", idle.wakes_by_request)):
        if wanted:
            raise ConfigError(
                f"{name} needs a thread that watches the clock beside the caller's, which AsyncLLMEngine and "
                "`lullm serve` have; here call sleep() and wake_up() yourself"
            )


def _check_threaded(config: EngineConfig) -> None:
    """Check that an engine with these options may have a thread of its own. Raises UnsupportedError otherwise."""
    if config.distributed_executor_backend == "external_launcher":
        raise UnsupportedError(
            "distributed_executor_backend='external_launcher' does not go with AsyncLLMEngine or `lullm serve`: their "
            "requests come to one process, and all have to plan the same; use LLM in the script, or 'mp'"
        )


def open_scheduler(
    config: ResolvedConfig, model: ModelConfig, executor: Executor, has_chosen_len: bool
) -> tuple[ResolvedConfig, Scheduler]:
    """Set up the KV cache of all workers. Returns a scheduler, and the config with a model length that fits the cache.

    Args:
        config: resolved.
        has_chosen_len: the user set `max_model_len`, so it is not lowered.

    Blocking. Raises CacheSizeError: the chosen length does not fit, or nothing does.
    """
    model = _of_worker(config, model)
    num_blocks, num_host_blocks = executor.determine_num_available_blocks()
    config = _fit_model_len(config, model, num_blocks, has_chosen_len)
    executor.initialize_cache(num_blocks, num_host_blocks, config.max_model_len)
    layout = cache_layout_of(model, config.block_size, config.kv_dtype)
    block_space = BlockSpaceManager(
        num_blocks,
        config.block_size,
        config.watermark,
        config.enable_prefix_caching,
        num_host_blocks,
        groups=layout.groups,
    )
    rules = SchedulingRules(
        policy=config.scheduling_policy,
        enable_chunked_prefill=config.enable_chunked_prefill,
        delay_factor=config.delay_factor,
        max_in_flight=config.max_in_flight,
        feeds_back=config.feeds_back,
        max_loras=config.max_loras if config.enable_lora else 0,
    )
    return config, Scheduler(
        SchedulerLimits(config.max_num_seqs, config.max_num_batched_tokens, config.max_model_len),
        block_space,
        rules,
        time.monotonic,
        _preemption_policy(config, model, executor, num_host_blocks),
        open_guesser(config, block_space, layout.whole_group),
    )


def num_blocks_ahead(config: ResolvedConfig, model: ModelConfig) -> int:
    """The most blocks of one sequence that one step can fill."""
    step_len = min(config.max_num_batched_tokens, config.max_model_len)
    return num_blocks_for_len(_of_worker(config, model), config.block_size, config.kv_dtype, step_len)


def bytes_per_block(config: ResolvedConfig, model: ModelConfig) -> int:
    """Bytes of one KV block on all workers together."""
    axis = Axis(0, config.tensor_parallel_size)
    stages = [on_stage(model, config, stage) for stage in range(config.pipeline_parallel_size)]
    shares = [share_of(stage, axis, config.enable_expert_parallel) for stage in stages]
    return axis.size * sum(block_bytes(share, config.block_size, config.kv_dtype) for share in shares)


def _of_worker(config: ResolvedConfig, model: ModelConfig) -> ModelConfig:
    """The sizes of a worker's cache, in blocks of the same numbers on all workers."""
    axis = Axis(0, config.tensor_parallel_size)
    return share_of(on_stage(model, config), axis, config.enable_expert_parallel)


def _preemption_policy(
    config: ResolvedConfig, model: ModelConfig, executor: Executor, num_host_blocks: int
) -> PreemptionPolicy:
    size = block_bytes(model, config.block_size, config.kv_dtype) + draft_block_bytes(config)
    if not num_host_blocks or config.preemption_mode == "recompute":
        return PreemptionPolicy("recompute", size)
    if config.preemption_mode == "swap":
        return PreemptionPolicy("swap", size)
    speeds = Speeds(executor.measure_copy_speed())
    logger.info("swapping: %s/s between the pools", format_bytes(int(speeds.copy_bytes_per_s)))
    return PreemptionPolicy("auto", size, speeds)


def _fit_model_len(config: ResolvedConfig, model: ModelConfig, num_blocks: int, has_chosen_len: bool) -> ResolvedConfig:
    """The config with a model length that the cache can hold; a length the user chose is not lowered.

    Raises:
        CacheSizeError: the chosen length does not fit.
    """
    sizes = model, config.block_size, config.kv_dtype
    capacity = max_len_within(*sizes, num_blocks, config.max_model_len)
    if num_blocks_for_len(*sizes, config.max_model_len) <= num_blocks:
        return config
    if has_chosen_len:
        raise CacheSizeError(
            f"the KV cache has room for {capacity} tokens, fewer than max_model_len={config.max_model_len}; lower "
            "max_model_len, or raise kv_cache_memory_bytes or num_gpu_blocks_override"
        )
    logger.warning(
        "model length lowered from %d to %d tokens, which is what the KV cache holds", config.max_model_len, capacity
    )
    return dataclasses.replace(config, max_model_len=capacity)
