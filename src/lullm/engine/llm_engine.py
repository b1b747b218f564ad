"""LLMEngine: the synchronous engine. Calls of `step` drive it; it starts no thread."""

import dataclasses
import time
from collections.abc import Iterable

from lullm.config.engine import EngineArguments, EngineConfig
from lullm.engine.assembly import check_options, num_blocks_ahead, open_scheduler
from lullm.engine.engine_calls import EngineCalls
from lullm.engine.hibernation.calls import HibernationCalls
from lullm.engine.input.calls import InputCalls
from lullm.engine.interrupt import deferred_interrupt
from lullm.engine.lifecycle import Lifecycle
from lullm.engine.lora.adapters import Adapters
from lullm.engine.restarts import Restarts
from lullm.engine.start.model import open_model
from lullm.engine.step_loop import StepLoop
from lullm.engine.stream_pace import StreamPace
from lullm.errors import WorkerLostError
from lullm.executor.factory import open_executor
from lullm.kv.snapshot import MemorySnapshot
from lullm.log import get_logger
from lullm.machine.memory_ahead import MemoryAhead
from lullm.models.stages import with_stages
from lullm.ops.state.chunks import with_chunks_of_use
from lullm.sched.monitor import take_occupancy, take_stats
from lullm.text.tokenizer import Tokenizer
from lullm.types.monitor.occupancy import Occupancy
from lullm.types.monitor.stats import EngineStats
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest
from lullm.types.vllm_argument import VLLM_START, takes_vllms

logger = get_logger(__name__)


class LLMEngine(EngineCalls, HibernationCalls, InputCalls):
    """Loads a model and serves requests, one `step` at a time. Not safe to share between threads.

    Args:
        has_thread: an `EngineThread` drives this engine, and puts it to sleep and wakes it (`sleep_after`,
            `auto_wake`).
        pace: of streams.
        ahead: memory that a `head_start` has taken for the weights.

    Attributes:
        opened: the model's small files, with the config and model_config below.
        config: resolved, with the model length that the KV cache holds.
        model_config, tokenizer: read from the model's folder.
        default_params, stated_params: see `EngineClient`.
        input_processor: may be called from other threads, as `stats` may.
        model_executor: runs the workers.
        lifecycle: knows whether the engine is awake.

    Raises:
        ModelLoadError, ConfigError, CacheSizeError: from the constructor, which blocks until the model is loaded.
    """

    def __init__(
        self,
        config: EngineConfig,
        has_thread: bool = False,
        ahead: MemoryAhead | None = None,
        pace: StreamPace | None = None,
    ):
        started = time.monotonic()
        check_options(config, has_thread)
        model = open_model(config)
        self.tokenizer = model.tokenizer
        self.default_params, self.stated_params = model.default_params, model.stated_params
        resolved = with_stages(model.config, model.model_config)
        self.model_config = with_chunks_of_use(
            model.model_config, resolved.device, resolved.dtype, resolved.num_workers
        )
        self.model_executor = open_executor(resolved, self.model_config, model.folder, ahead)
        try:
            self.config, self._scheduler = open_scheduler(
                resolved, self.model_config, self.model_executor, has_chosen_len=config.max_model_len is not None
            )
        except BaseException:
            self.model_executor.shutdown()
            raise
        self._block_space = self._scheduler.block_space
        self._num_blocks_ahead = num_blocks_ahead(self.config, self.model_config)
        self.opened = dataclasses.replace(model, config=self.config, model_config=self.model_config)
        self.input_processor = self.opened.input_processor()
        self._adapters = Adapters(self.config, self.model_executor, self._scheduler.waiting)
        can_sleep = self.config.enable_sleep_mode
        self.lifecycle = Lifecycle(self.model_executor, self._scheduler, can_sleep, self._adapters)
        restarts = Restarts(self.config.restart_workers, self.model_executor, self.lifecycle, self._adapters)
        parts = self._scheduler, self.model_executor, self.tokenizer
        self._loop = StepLoop(*parts, pace, restarts.restart, self._adapters)  # no circle: `del` frees at once
        logger.info("ready in %.1f s: %s", time.monotonic() - started, self.config.served_model_name)

    @classmethod
    @takes_vllms(VLLM_START)
    def from_engine_args(cls, engine_args: EngineArguments) -> "LLMEngine":
        """Construct from `EngineArgs`. Raises as the constructor does."""
        return cls(engine_args.create_engine_config())

    @classmethod
    @takes_vllms(VLLM_START)
    def from_vllm_config(cls, vllm_config: EngineConfig) -> "LLMEngine":
        """The constructor, under vLLM's name; `create_engine_config()` of `EngineArgs` makes the config."""
        return cls(vllm_config)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, with its chat template."""
        return self.tokenizer

    def add_processed(self, request: GenerateRequest) -> None:
        """Queue a request from `input_processor`. Raises as `add_request` does."""
        self.check_health()
        self.lifecycle.check_awake()
        self._loop.add(self._adapters.admit(request))

    def step(self) -> list[EngineOutput]:
        """Run one step: plan, execute, take in the tokens. Blocks for as long as the model computes.

        Ctrl-C takes effect at the end of the step, whose outputs come with the next.

        Raises:
            EngineDeadError: the step failed, or an earlier one did; all requests are lost.
            EngineAsleepError: requests wait for `wake_up`.
        """
        self.check_health()
        if self._scheduler.has_unfinished:
            self.lifecycle.check_awake()
            if self.lifecycle.has_stale_kv:
                self._loop.drain()
                self.lifecycle.drop_stale_kv()
        with deferred_interrupt() as interrupt:
            outputs = self._loop.step()
            if interrupt.is_set():
                self._loop.keep(outputs)
        return outputs

    def abort_request(self, request_id: str | Iterable[str], wants_output: bool = True) -> None:
        """End one request or several, and free their blocks now. Unknown ids are ignored.

        The next `step` returns a request's last output, unless `wants_output` is False.
        """
        for each in (request_id,) if isinstance(request_id, str) else request_id:
            self._loop.abort(each, wants_output)

    def take_pending(self) -> list[EngineOutput]:
        """Last outputs of aborted requests, without a step: an engine that is asleep has none."""
        return self._loop.take_pending()

    def touch_ahead(self) -> bool:
        """Touch some of the memory that the next prompt's KV blocks will need. Returns whether more is left. For an
        idle engine.

        A host provides memory at the first touch: 0.25 s per 1,024 tokens of a 0.6B model, which a request then need
        not wait for. Touches at most one step's tokens ahead of the blocks in use; a sleep releases them like all
        others.
        """
        block_ids = self._block_space.next_free(self._num_blocks_ahead)
        try:
            return self.model_executor.touch_blocks(block_ids)
        except WorkerLostError as loss:
            self._loop.recover(loss)
            return True

    def has_unfinished_requests(self) -> bool:
        """Whether the next `step` has work to do or outputs to return."""
        return self._scheduler.has_unfinished or bool(self._loop.pending)

    def get_num_unfinished_requests(self) -> int:
        """The number of requests that have not ended."""
        return len(self._scheduler.unfinished_ids)

    def unfinished_request_ids(self) -> list[str]:
        """Ids of the requests that have not ended, in the order in which they came."""
        return self._scheduler.unfinished_ids

    def stats(self) -> EngineStats:
        """A snapshot; may be called from another thread."""
        return take_stats(self._scheduler, self._loop.num_steps, self._loop.finished, self._loop.expert_balance)

    def memory_snapshot(self) -> MemorySnapshot:
        """Every block of both pools: owners, fill, content. For the thread that steps, between steps; O(blocks)."""
        return self._block_space.snapshot([*self._scheduler.running, *self._scheduler.swapped])

    def occupancy(self, max_cells: int) -> Occupancy:
        """The owners of the KV cache's blocks, in at most `max_cells` cells per pool. As `memory_snapshot`; quick."""
        return take_occupancy(self._scheduler, max_cells)

    def check_health(self) -> None:
        """Check that the engine serves; replace lost workers if `restart_workers` allows it. Raises EngineDeadError"""
        self._loop.check_alive()
        try:
            self.model_executor.check_health()
        except WorkerLostError as loss:
            self._loop.recover(loss)

    def shutdown(self) -> None:
        """Abort all requests and release all memory. Idempotent."""
        for request_id in self._scheduler.unfinished_ids:
            self.abort_request(request_id)
        self.model_executor.shutdown()
        if self.tokenizer.chat_template is not None:
            self.tokenizer.chat_template.close()
