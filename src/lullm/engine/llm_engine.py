"""LLMEngine: the synchronous engine. Whoever calls `step` drives it; it starts no thread."""

import dataclasses
import time
from collections.abc import Sequence
from typing import get_args

from lullm.config.engine import EngineConfig
from lullm.config.generation import GenerationDefaults
from lullm.config.model import ModelConfig
from lullm.engine.input import InputProcessor
from lullm.engine.lifecycle import Lifecycle
from lullm.engine.output import OutputProcessor
from lullm.errors import CacheSizeError, EngineDeadError, InvalidRequestError
from lullm.executor.protocol import Executor
from lullm.executor.uniproc import UniProcExecutor
from lullm.kv.block_space import BlockSpaceManager
from lullm.kv.layout import block_bytes, num_blocks_for_len
from lullm.kv.snapshot import MemorySnapshot
from lullm.log import get_logger
from lullm.sched.preemption import PreemptionPolicy, Speeds
from lullm.sched.scheduler import Scheduler, SchedulerLimits
from lullm.text.tokenizer import Tokenizer
from lullm.types.outputs import RequestOutput
from lullm.types.request import GenerateRequest, Prompt
from lullm.types.sampling_params import OutputKind, SamplingParams
from lullm.types.sleep import SleepMode, SleepReport
from lullm.types.stats import EngineStats
from lullm.types.step import StepResult
from lullm.units import format_bytes
from lullm.weights.folder import resolve_model

logger = get_logger(__name__)


class LLMEngine:
    """Loads a model and serves requests, one `step` at a time. Not safe to share between threads.

    Attributes:
        config, model_config: resolved. tokenizer. default_params: from the model's generation_config.json.
        input_processor: the only part that other threads may call.
        model_executor: runs the workers.

    Raises:
        ModelLoadError, ConfigError, CacheSizeError: from the constructor, which blocks until the model is loaded.
    """

    def __init__(self, config: EngineConfig):
        started = time.monotonic()
        folder = resolve_model(config.model, config.revision)
        self.model_config = ModelConfig.from_folder(folder)
        self.config = config.resolve(self.model_config)
        self.tokenizer = Tokenizer.from_folder(resolve_model(config.tokenizer) if config.tokenizer else folder)
        defaults = GenerationDefaults.from_folder(folder)
        self.default_params = defaults.params
        eos_token_ids = defaults.eos_token_ids + self.model_config.eos_token_ids
        if self.tokenizer.eos_token_id is not None:
            eos_token_ids += (self.tokenizer.eos_token_id,)
        self.model_executor: Executor = UniProcExecutor(self.config, self.model_config, folder)
        try:
            num_blocks, num_host_blocks = self.model_executor.determine_num_available_blocks()
            self.config = _fit_model_len(
                self.config, self.model_config, num_blocks, is_chosen=config.max_model_len is not None
            )
            self.model_executor.initialize_cache(num_blocks, num_host_blocks)
            preemption = self._preemption_policy(num_host_blocks)
        except BaseException:
            self.model_executor.shutdown()
            raise
        assert self.config.max_model_len is not None
        limits = SchedulerLimits(
            self.config.max_num_seqs, self.config.max_num_batched_tokens, self.config.max_model_len
        )
        self._block_space = BlockSpaceManager(
            num_blocks,
            self.config.block_size,
            self.config.watermark,
            self.config.enable_prefix_caching,
            num_host_blocks,
            window=self.model_config.sliding_window,
        )
        self._scheduler = Scheduler(
            limits,
            self._block_space,
            self.config.scheduling_policy,
            time.monotonic,
            preemption,
            self.config.enable_chunked_prefill,
            self.config.delay_factor,
        )
        self.input_processor = InputProcessor(
            self.config, self.model_config, self.tokenizer, tuple(dict.fromkeys(eos_token_ids))
        )
        self._output_processor = OutputProcessor(self.tokenizer)
        self._lifecycle = Lifecycle(
            self.model_executor, self._scheduler, self._block_space, self.config.enable_sleep_mode
        )
        self._pending: list[RequestOutput] = []  # terminal outputs of aborted requests, for the next step to return
        self._num_steps = 0
        self._finished: dict[str, int] = {"stop": 0, "length": 0, "abort": 0}
        self._failure: BaseException | None = None
        logger.info("ready in %.1f s: %s", time.monotonic() - started, self.config.served_model_name)

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | None = None, priority: int = 0
    ) -> None:
        """Queue a request; `params` None: the model's defaults.

        Raises:
            InvalidRequestError: the request can never be served. EngineDeadError: the engine has stopped.
        """
        self.add_processed(
            self.input_processor.process(
                request_id, prompt, self.default_params if params is None else params, priority
            )
        )

    def add_processed(self, request: GenerateRequest) -> None:
        """Queue a request that `input_processor` has made. Raises as `add_request` does."""
        self.check_health()
        self._lifecycle.check_awake()
        params = request.params
        if params.output_kind is OutputKind.DELTA and (params.beam_width or params.num_sequences > params.n):
            name = "beam_width" if params.beam_width else "best_of"
            raise InvalidRequestError(f"{name} cannot be streamed: the best are known at the end only", name)
        self._output_processor.add(self._scheduler.add(request))

    def step(self) -> list[RequestOutput]:
        """Run one step: plan, execute, take in the tokens. Blocks for as long as the model computes.

        Raises:
            EngineDeadError: the step failed, or an earlier one did; all requests are lost.
            EngineAsleepError: requests wait for `wake_up`.
        """
        self.check_health()
        if self._scheduler.has_unfinished:
            self._lifecycle.check_awake()
        try:
            return self._step()
        except Exception as error:
            self._failure = error
            logger.exception("the step failed; the engine is dead")
            raise EngineDeadError(f"the engine died in a step: {type(error).__name__}: {error}") from error

    def _step(self) -> list[RequestOutput]:
        plan = self._scheduler.plan()
        result = StepResult([]) if plan.is_empty else self.model_executor.execute_model(plan)
        self._num_steps += not plan.is_empty
        updates = self._scheduler.apply(plan, result)
        for update in updates:
            stop = self._output_processor.take(update)
            if stop is not None and not update.seq.is_finished:
                self._scheduler.finish(update.seq, stop)
        outputs = self._output_processor.outputs({id(u.group): u.group for u in updates}.values())
        for output in outputs:
            self._count_finished(output)
        outputs, self._pending = self._pending + outputs, []
        return outputs

    def abort_request(self, request_id: str, wants_output: bool = True) -> None:
        """End a request and free its blocks now. Unknown ids are ignored.

        The next `step` returns the request's last output, unless nobody waits for it (`wants_output` False).
        """
        group = self._scheduler.abort(request_id)
        if group is None:
            return
        output = self._output_processor.abort(group)
        self._count_finished(output)
        if wants_output:
            self._pending.append(output)

    def take_pending(self) -> list[RequestOutput]:
        """Last outputs of aborted requests, without a step: an engine that is asleep has none."""
        outputs, self._pending = self._pending, []
        return outputs

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to do or to return."""
        return self._scheduler.has_unfinished or bool(self._pending)

    def unfinished_request_ids(self) -> list[str]:
        return self._scheduler.unfinished_ids

    def sleep(self, level: int = 1, mode: SleepMode = "keep", tags: Sequence[str] | None = None) -> SleepReport:
        """Release memory; returns once it is released. Idempotent.

        Args:
            level: 0 pauses, 1 keeps what is needed to go on, 2 keeps nothing (see `Lifecycle.sleep`).
            mode: requests that are not finished are kept and continued after waking ('keep'), finished first
                ('wait'; their outputs come with the next `step`), or aborted ('abort').
            tags: 'weights' and 'kv_cache'; None: both.

        Raises:
            ConfigError: sleep mode is off. InvalidRequestError: unknown level, mode or tag. OSError: what must be
            kept could not be saved; the engine is awake. EngineAsleepError: mode 'wait', but the engine sleeps
            already and keeps requests, which cannot end.
        """
        self.check_sleep(level, mode, tags)
        while mode == "wait" and self._scheduler.has_unfinished:
            self._pending = self.step()
        if mode == "abort":
            for request_id in self._scheduler.unfinished_ids:
                self.abort_request(request_id)
        return self._lifecycle.sleep(level, tags)

    def check_sleep(self, level: int, mode: SleepMode, tags: Sequence[str] | None) -> None:
        """Return if such a call of `sleep` would be taken. Raises as `sleep` does otherwise."""
        self.check_health()
        self._lifecycle.check_call(level, tags)
        modes = get_args(SleepMode)
        if mode not in modes:
            raise InvalidRequestError(f"sleep mode must be one of {', '.join(modes)}, not {mode!r}", "mode")

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring back what `sleep` released (`tags` None: all), at the same addresses. Idempotent.

        Raises:
            WakeUpError: it did not come back as it was; the engine is still asleep.
        """
        self.check_health()
        self._lifecycle.wake_up(tags)

    @property
    def is_sleeping(self) -> bool:
        return self._lifecycle.is_sleeping

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """What is released now."""
        return self._lifecycle.sleeping_tags

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running requests keep theirs."""
        self._block_space.reset_prefix_cache()

    def _preemption_policy(self, num_host_blocks: int) -> PreemptionPolicy:
        size = block_bytes(self.model_config, self.config.block_size, self.config.kv_dtype)
        if not num_host_blocks or self.config.preemption_mode == "recompute":
            return PreemptionPolicy("recompute", size)
        if self.config.preemption_mode == "swap":
            return PreemptionPolicy("swap", size)
        speeds = Speeds(*self.model_executor.measure_speeds())
        logger.info(
            "swapping: %s/s between the pools; recomputing: %.0f tok/s",
            format_bytes(int(speeds.copy_bytes_per_s)),
            speeds.prefill_tokens_per_s,
        )
        return PreemptionPolicy("auto", size, speeds)

    def stats(self) -> EngineStats:
        """A snapshot; may be called from another thread."""
        scheduler, cache = self._scheduler, self._block_space.prefix_cache
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_swapped=len(scheduler.swapped),
            num_blocks=self._block_space.num_blocks,
            num_used_blocks=self._block_space.num_used_blocks,
            num_host_blocks=self._block_space.num_host_blocks,
            num_used_host_blocks=self._block_space.num_used_host_blocks,
            prefix_cache_queries_total=cache.queries,
            prefix_cache_hits_total=cache.hits,
            prefix_cache_host_hits_total=cache.host_hits,
            preemptions_total={**scheduler.preemption.counts},
            prompt_tokens_total=scheduler.stats.prompt_tokens,
            generation_tokens_total=scheduler.stats.generation_tokens,
            steps_total=self._num_steps,
            finished_total=dict(self._finished),
        )

    def memory_snapshot(self) -> MemorySnapshot:
        """Every block of both pools: owners, fill, content. For the thread that steps, between steps; O(blocks)."""
        return self._block_space.snapshot([*self._scheduler.running, *self._scheduler.swapped])

    def check_health(self) -> None:
        """Return if the engine serves. Raises EngineDeadError otherwise."""
        if self._failure is not None:
            raise EngineDeadError(f"the engine died earlier: {self._failure}; build a new one") from self._failure
        self.model_executor.check_health()

    def _count_finished(self, output: RequestOutput) -> None:
        if output.finished:
            reason = output.outputs[0].finish_reason if output.outputs else None
            self._finished[reason or "abort"] += 1

    def shutdown(self) -> None:
        """Abort everything and give all memory back. Idempotent."""
        for request_id in self._scheduler.unfinished_ids:
            self.abort_request(request_id)
        self.model_executor.shutdown()


def _fit_model_len(config: EngineConfig, model: ModelConfig, num_blocks: int, is_chosen: bool) -> EngineConfig:
    """The config with a model length that the cache can hold; a length the user chose is not lowered.

    Raises:
        CacheSizeError: the chosen length does not fit.
    """
    capacity = num_blocks * config.block_size
    assert config.max_model_len is not None
    if num_blocks_for_len(model, config.block_size, config.max_model_len) <= num_blocks:
        return config
    if is_chosen:
        raise CacheSizeError(
            f"the KV cache has room for {capacity} tokens, fewer than max_model_len={config.max_model_len}; lower "
            "max_model_len, or raise kv_cache_memory_bytes or num_gpu_blocks_override"
        )
    logger.warning(
        "model length lowered from %d to %d tokens, which is what the KV cache holds", config.max_model_len, capacity
    )
    return dataclasses.replace(config, max_model_len=capacity)
