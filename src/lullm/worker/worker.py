"""Worker: one device's share of the model, behind an executor's calls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from lullm.arena.arena import Arena
from lullm.collective.seat import Seat
from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.device.profiler import Profiler
from lullm.kv.layout import num_blocks_within, num_host_blocks_within
from lullm.log import get_logger
from lullm.machine.memory_ahead import MemoryAhead
from lullm.step.runner import ModelRunner
from lullm.types.hibernation.report import BlockFile, block_file_name
from lullm.types.parallel.experts import LayerExperts
from lullm.types.sleep import KV_CACHE, WEIGHTS, Action, Released, SleepCommand, SleepForecast, UsedBlocks
from lullm.types.step import Running, StepPlan, StepResult
from lullm.weights.rule import trainer_name
from lullm.weights.store import WeightUpdate
from lullm.worker import expert_places
from lullm.worker.adapter.shelf import AdapterShelf
from lullm.worker.draft.draft import Draft, open_draft
from lullm.worker.draft.paired_steps import PairedSteps
from lullm.worker.kv_pools import KVPools, map_pools
from lullm.worker.loaded_model import LoadedModel, check_checkpoint, load_model
from lullm.worker.pages_ahead import touch_blocks
from lullm.worker.setup import WorkerSetup, open_setup
from lullm.worker.sizing import kv_memory_bytes, measure_copy_speed
from lullm.worker.sleep.hibernation import read_blocks, write_blocks
from lullm.worker.sleep.sleeper import Sleeper
from lullm.worker.warm_up import compile_ahead, compile_kernels

logger = get_logger(__name__)


class Worker:
    """Runs plans on one device. The constructor loads the model; after `initialize_cache` it takes plans.

    Every method except `launch_model` blocks until it is done.

    Args:
        seat: its place among the workers that share the model, closed with the worker. None: the only worker.

    Attributes:
        loaded: the model and its weights. draft: the model that guesses tokens, if there is one. arenas: all memory of
            the worker. adapters: None without `enable_lora`.
        pools, model_runner, draft_runner: from `initialize_cache` on. Trainers write into the runner's `model`.

    Raises:
        ModelLoadError, CacheSizeError, UnsupportedError: from the constructor.
    """

    setup: WorkerSetup
    loaded: LoadedModel
    adapters: AdapterShelf | None
    draft: Draft | None
    arenas: list[Arena]
    pools: KVPools
    model_runner: ModelRunner
    draft_runner: ModelRunner | None
    _paired: PairedSteps | None
    _undo: ExitStack
    _profiler: Profiler
    _sleeper: Sleeper
    _update: WeightUpdate

    def __init__(
        self,
        config: ResolvedConfig,
        model_config: ModelConfig,
        folder: Path,
        ahead: MemoryAhead | None = None,
        seat: Seat | None = None,
    ):
        self.setup = open_setup(config, model_config, ahead, seat)
        self.loaded = load_model(self.setup, folder)
        self._undo = ExitStack()
        self._undo.callback(self.setup.seat.close)
        self._undo.callback(self.loaded.arena.close)
        self._undo.callback(self.loaded.store.close)
        self.arenas = [self.loaded.arena]
        try:
            self.adapters = AdapterShelf(self.setup, self.loaded.model) if config.enable_lora else None
            if self.adapters is not None:
                self._keep(self.adapters.arena)
            self.draft = open_draft(self.setup)
            if self.draft is not None:
                self._keep(self.draft.loaded.arena)
        except BaseException:
            self._undo.close()
            raise
        place = self.setup.seat.placement
        self._profiler = Profiler(f"-rank{place.rank}" if place.num_workers > 1 else "")

    def _keep(self, arena: Arena) -> None:
        self._undo.callback(arena.close)
        self.arenas.append(arena)

    @property
    def rank(self) -> int:
        """Its number among all workers of the engine."""
        return self.setup.seat.placement.rank

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self.setup.device.torch_device

    @property
    def is_accelerator(self) -> bool:
        """Whether steps run asynchronously to the host, so that the next can be launched while one runs."""
        return self.setup.device.is_accelerator

    def available_memory_bytes(self) -> int:
        """Free memory of the device."""
        return self.setup.device.memory_info().free_bytes

    def num_available_blocks(self) -> tuple[int, int]:
        """(device, host) KV blocks that fit here; before `initialize_cache`. Raises CacheSizeError: none fits."""
        setup, draft = self.setup, self.draft
        if draft is not None:
            compile_ahead(draft.setup, draft.loaded.model)
            kv_memory_bytes(draft.setup, draft.loaded.model)  # a device's allocator keeps what its largest step took
        compile_ahead(setup, self.loaded.model)
        available = kv_memory_bytes(setup, self.loaded.model, self._weight_bytes_to_come())
        num_blocks = num_blocks_within(setup.config, setup.model_config, available)
        return num_blocks, num_host_blocks_within(setup.config, setup.model_config, num_blocks)

    def _weight_bytes_to_come(self) -> int:
        """Memory that mapped weights and adapters will take: what was touched ahead is theirs already."""
        mapped, own = self.loaded.store.num_mapped_bytes, self.setup.device.resident_bytes(self.loaded.arena)
        adapters = 0 if self.adapters is None or self.is_accelerator else self.adapters.arena.used_bytes
        return (max(mapped - own, 0) if mapped else 0) + adapters

    def initialize_cache(self, num_blocks: int, num_host_blocks: int, max_model_len: int) -> None:
        """Map both pools of the KV cache and prepare steps: a GPU records its graphs. Raises CacheSizeError.

        `max_model_len`: the length that the engine admits, at most the configured one. It sizes the buffers of a step.
        """
        self.setup = self.setup.fitted(max_model_len)
        setup, model = self.setup, self.loaded.model
        draft = self.draft = None if self.draft is None else self.draft.fitted(max_model_len)
        self.pools = map_pools(setup, num_blocks, num_host_blocks, None if draft is None else draft.setup)
        self._undo.callback(self.pools.close)
        self.arenas += self.pools.arenas
        of_draft = None if draft is None else draft.loaded.store
        self._sleeper = Sleeper(setup, self.loaded.store, self.pools, self.arenas, of_draft)
        self._undo.callback(self._sleeper.close)
        pools = self.pools
        self.model_runner = setup.new_model_runner(model, pools.device, pools.host, pools.workspace, self.adapters)
        self._make_ready(self.model_runner, setup, pools)
        self.draft_runner = self._paired = None
        if draft is not None and pools.draft is not None:
            self.draft_runner = draft.new_runner(pools)
            self._make_ready(self.draft_runner, draft.setup, pools.draft)
            self._paired = draft.paired(setup, self.model_runner, self.draft_runner)
        self.reset_kv_scales()  # scales and load of the steps so far are nobody's
        self.clear_expert_load()
        if setup.config.pin_backup:
            self._sleeper.pin_ahead()
        self.loaded.store.settle_behind(setup.threads.num_threads)

    def _make_ready(self, runner: ModelRunner, setup: WorkerSetup, pools: KVPools) -> None:
        """Compile the kernels of its steps, and record them where that is done ahead."""
        self._undo.callback(runner.graphs.drop)
        compile_kernels(setup, runner.model, pools)
        if setup.records_graphs:
            runner.capture_graphs()

    def reset_kv_scales(self) -> None:
        """Reset the scales of an fp8 cache; no block may be in use. Other caches have no scales.

        Scales of the checkpoint get their values again. The others are 1 or, with `calculate_kv_scales`, computed from
        the next step's tokens.
        """
        runners = [(self.loaded, self.model_runner)]
        if self.draft is not None and self.draft_runner is not None:
            runners.append((self.draft.loaded, self.draft_runner))
        for loaded, runner in runners:
            is_open = [scales.reset() for scales in loaded.kv_scales]
            runner.calibrates = self.setup.config.calculate_kv_scales and any(is_open)

    def measure_copy_speed(self) -> float:
        """Bytes per second between the pools. See `sizing.measure_copy_speed`."""
        return measure_copy_speed(self.setup, self.pools)

    def touch_blocks(self, block_ids: Sequence[int]) -> bool:
        """See `pages_ahead.touch_blocks`. A device has its memory from the start."""
        self.loaded.store.drop_settled()
        return not self.setup.device.is_accelerator and touch_blocks(self.pools, block_ids)

    def launch_model(self, plan: StepPlan) -> Running[StepResult]:
        """Start a step without waiting for it. Take the results in order."""
        self.loaded.store.drop_settled()
        return (self._paired or self.model_runner).launch(plan)

    def prepare_sleep(self, command: SleepCommand) -> None:
        """See `Sleeper`, for this method and the next six."""
        self.settle()
        self._sleeper.prepare_sleep(command)

    def commit_sleep(self) -> Released:
        self.model_runner.forget_tiles()
        released = self._sleeper.commit_sleep()
        if KV_CACHE in released.tags:
            self.model_runner.forget_touched()
            if self.draft_runner is not None:
                self.draft_runner.forget_touched()
        return released

    def cancel_sleep(self) -> None:
        self._sleeper.cancel_sleep()

    def wake_up(self, tag: str, action: Action, ahead: Sequence[str] = ()) -> int:
        num_bytes = self._sleeper.wake_up(tag, action, ahead)
        if tag == WEIGHTS and self.adapters is not None:
            self.adapters.clear()
        return num_bytes

    def commit_wake_up(self, tag: str) -> None:
        self._sleeper.commit_wake_up(tag)

    def cancel_wake_up(self, tag: str) -> None:
        self._sleeper.cancel_wake_up(tag)

    def forecast_sleep(self, command: SleepCommand) -> SleepForecast:
        self.settle()
        return self._sleeper.forecast(command)

    def read_adapter(self, number: int, path: str) -> int:
        """See `AdapterShelf`. Raises ModelLoadError."""
        assert self.adapters is not None, "the engine has checked enable_lora"
        return self.adapters.read(number, path)

    def drop_adapter(self, number: int) -> None:
        """See `AdapterShelf`."""
        if self.adapters is not None:
            self.adapters.drop(number)

    def weight_checksums(self) -> dict[str, int]:
        """See `WeightStore.lasting_checksums`."""
        return self.loaded.store.lasting_checksums()

    def compute_weight_checksums(self) -> dict[str, str]:
        """The same as hexadecimal digits, under vLLM's name."""
        return {name: f"{value:016x}" for name, value in self.weight_checksums().items()}

    def write_blocks(self, folder: Path, used: UsedBlocks) -> BlockFile:
        """See `hibernation`, for this method and the next; `folder`: of all workers' files."""
        path = folder / block_file_name(self.rank)
        return write_blocks(self.setup.device, self.pools, self.loaded.kv_scales, path, used)

    def read_blocks(self, folder: Path, used: UsedBlocks, files: Sequence[BlockFile]) -> int:
        path, file = folder / block_file_name(self.rank), files[self.rank]
        num_bytes = read_blocks(self.setup.device, self.pools, self.loaded.kv_scales, path, used, file)
        if used.device or used.host:
            self.model_runner.calibrates = False  # the blocks are valid with their scales only
        return num_bytes

    def settle(self) -> None:
        """Bring all weights into their place, where a caller's function may read them. See `WeightStore.settle`."""
        self.loaded.store.settle()

    def begin_update(self) -> None:
        """Begin an update; weights come one by one. Raises EngineAsleepError: the weights are asleep."""
        self._update = self.loaded.store.begin_update()

    def write_weight(self, name: str, tensor: torch.Tensor) -> None:
        """Replace one weight. See `WeightUpdate.write`."""
        self._update.write(name, tensor)

    def end_update(self) -> list[str]:
        """End the update. Returns the checkpoint's names of the replaced tensors."""
        self._update.close()
        return self._update.applied

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> int:
        """A whole update, for functions that `collective_rpc` runs here. Returns the number of tensors."""
        return len(self.loaded.store.update(weights))

    def weight_shape(self, name: str) -> torch.Size | None:
        """The shape of the whole model's tensor of this name, a checkpoint's or a trainer's; None: no such tensor."""
        return self.loaded.store.targets.shape_of(trainer_name(name))

    def check_checkpoint(self, folder: Path) -> None:
        """See `loaded_model`. Changes nothing."""
        check_checkpoint(self.setup, self.loaded.model, folder)

    def reload_weights(self, checkpoint: Path | None = None) -> None:
        """See `WeightStore.load`. Raises EngineAsleepError: the weights are asleep."""
        self.loaded.store.check_resident()
        self.loaded.store.load(checkpoint)

    def keep_checkpoint(self, checkpoint: Path) -> None:
        """From now on the weights are read from there, at wake-ups, too."""
        self.loaded.store.checkpoint = checkpoint

    def layer_experts(self) -> list[LayerExperts]:
        """See `expert_places`, for this method and the next two."""
        return expert_places.layer_experts(self.loaded.model)

    def clear_expert_load(self) -> None:
        expert_places.clear_expert_load(self.loaded.model)

    def swap_experts(self, swaps: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        expert_places.swap_experts(self.loaded.model, self.loaded.store, self.setup.seat.tensor, swaps)

    def weights_version(self) -> int:
        """See `WeightStore`."""
        return self.loaded.store.version

    def has_pushed_weights(self) -> bool:
        """Whether weights were changed since they were loaded or woke up."""
        return self.loaded.store.has_news

    def modified_weights(self) -> list[str]:
        """Parameters that differ from the checkpoint, by name."""
        return sorted(self.loaded.store.modified)

    def resident_bytes(self) -> dict[str, int]:
        """Physical memory behind each arena now, by tag."""
        return self._sleeper.resident_bytes()

    def start_profile(self, folder: Path) -> None:
        """See `Profiler.start`."""
        self._profiler.start(folder)

    def stop_profile(self) -> Path:
        """See `Profiler.stop`."""
        return self._profiler.stop()

    def shutdown(self) -> None:
        """Release all memory, even on a device that has failed. Idempotent."""
        self._unless_broken(self.setup.device.synchronize)
        self._undo.close()
        if self.is_accelerator:
            self._unless_broken(self.setup.device.trim)

    def _unless_broken(self, call: Callable[[], None]) -> None:
        """After an illegal access every call to a GPU fails. This must not hide the first error or keep memory."""
        try:
            call()
        except RuntimeError as error:
            logger.error("the device has failed, and with it every engine of this process on it: %s", error)
