"""Worker: one device's share of the model, behind the calls an executor makes."""

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
from lullm.types.parallel.experts import LayerExperts
from lullm.types.sleep import KV_CACHE, Action, Released, SleepCommand, SleepForecast
from lullm.types.step import Running, StepPlan, StepResult
from lullm.weights.rule import trainer_name
from lullm.weights.store import WeightUpdate
from lullm.worker import expert_places
from lullm.worker.kv_pools import KVPools, map_pools
from lullm.worker.loaded_model import LoadedModel, load_model
from lullm.worker.pages_ahead import touch_blocks
from lullm.worker.setup import WorkerSetup, open_setup
from lullm.worker.sizing import kv_memory_bytes, measure_speeds
from lullm.worker.sleep.sleeper import Sleeper
from lullm.worker.warm_up import compile_ahead, compile_kernels

logger = get_logger(__name__)


class Worker:
    """Runs plans on one device: the constructor loads the model, `initialize_cache` makes it ready for plans.

    Every method but `launch_model` blocks until it is done.

    Args:
        seat: its place among the workers that share the model; it is closed with the worker. None: it is alone.

    Attributes:
        loaded: the model and its weights. arenas: all memory of the worker.
        pools, model_runner: from `initialize_cache` on. The runner's `model` is the one that trainers write into.

    Raises:
        ModelLoadError, CacheSizeError, UnsupportedError: from the constructor.
    """

    setup: WorkerSetup
    loaded: LoadedModel
    arenas: list[Arena]
    pools: KVPools
    model_runner: ModelRunner
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
        self.arenas = [self.loaded.arena]
        place = self.setup.seat.placement
        self._profiler = Profiler(f"-rank{place.rank}" if place.num_workers > 1 else "")

    @property
    def rank(self) -> int:
        """Among all workers of the engine."""
        return self.setup.seat.placement.rank

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.setup.device.torch_device

    @property
    def is_accelerator(self) -> bool:
        """Whether steps run beside the host, so that the next can be launched while one runs."""
        return self.setup.device.is_accelerator

    def available_memory_bytes(self) -> int:
        """Free memory of the device."""
        return self.setup.device.memory_info().free_bytes

    def num_available_blocks(self) -> tuple[int, int]:
        """(device, host) KV blocks that fit here; before `initialize_cache`. Raises CacheSizeError: none does."""
        setup = self.setup
        compile_ahead(setup, self.loaded.model)
        available = kv_memory_bytes(setup, self.loaded.model)
        num_blocks = num_blocks_within(setup.config, setup.model_config, available)
        return num_blocks, num_host_blocks_within(setup.config, setup.model_config, num_blocks)

    def initialize_cache(self, num_blocks: int, num_host_blocks: int, max_model_len: int) -> None:
        """Map both pools of the KV cache, and get ready for steps: a GPU records its graphs. Raises CacheSizeError.

        `max_model_len`: what the engine admits, at most the configured length; the buffers of a step are as long.
        """
        self.setup = self.setup.fitted(max_model_len)
        setup, model = self.setup, self.loaded.model
        self.pools = map_pools(setup, num_blocks, num_host_blocks)
        self._undo.callback(self.pools.close)
        self.arenas += self.pools.arenas
        self._sleeper = Sleeper(setup, self.loaded.store, self.pools, self.arenas)
        self._undo.callback(self._sleeper.close)
        self.model_runner = setup.new_model_runner(model, self.pools.device, self.pools.host, self.pools.workspace)
        self._undo.callback(self.model_runner.graphs.drop)
        compile_kernels(setup, model, self.pools)
        if setup.records_graphs:
            self.model_runner.capture_graphs()
        self.reset_kv_scales()
        if setup.config.pin_backup:
            self._sleeper.pin_ahead()

    def reset_kv_scales(self) -> None:
        """Start over with the scales of an fp8 cache; no block may hold anything. Any other cache has none.

        The checkpoint's are back. The others are 1 or, with `calculate_kv_scales`, those of the next step's tokens.
        """
        is_open = [scales.reset() for scales in self.loaded.kv_scales]
        self.model_runner.calibrates = self.setup.config.calculate_kv_scales and any(is_open)

    def measure_speeds(self) -> tuple[float, float]:
        """(bytes per second between the pools, tokens per second of prefill). See `sizing.measure_speeds`."""
        speeds = measure_speeds(self.setup, self.model_runner, self.pools)
        self.reset_kv_scales()  # those found belong to a prompt of the measurement
        self.clear_expert_load()
        return speeds

    def touch_blocks(self, block_ids: Sequence[int]) -> bool:
        """See `pages_ahead.touch_blocks`. A device's memory is there from the start."""
        return not self.setup.device.is_accelerator and touch_blocks(self.pools, block_ids)

    def launch_model(self, plan: StepPlan) -> Running[StepResult]:
        """Start a step; results are to be asked for in order. Does not block for it."""
        return self.model_runner.launch(plan)

    def prepare_sleep(self, command: SleepCommand) -> None:
        """See `Sleeper`, for this and the five that follow."""
        self._sleeper.prepare_sleep(command)

    def commit_sleep(self) -> Released:
        released = self._sleeper.commit_sleep()
        if KV_CACHE in released.tags:
            self.model_runner.forget_touched()
        return released

    def cancel_sleep(self) -> None:
        self._sleeper.cancel_sleep()

    def wake_up(self, tag: str, action: Action, ahead: Sequence[str] = ()) -> int:
        return self._sleeper.wake_up(tag, action, ahead)

    def commit_wake_up(self, tag: str) -> None:
        self._sleeper.commit_wake_up(tag)

    def cancel_wake_up(self, tag: str) -> None:
        self._sleeper.cancel_wake_up(tag)

    def forecast_sleep(self, command: SleepCommand) -> SleepForecast:
        """See `Sleeper.forecast`."""
        return self._sleeper.forecast(command)

    def begin_update(self) -> None:
        """Weights come one by one now. Raises EngineAsleepError: the weights are asleep."""
        self._update = self.loaded.store.begin_update()

    def write_weight(self, name: str, tensor: torch.Tensor) -> None:
        """Replace one. See `WeightUpdate.write`."""
        self._update.write(name, tensor)

    def end_update(self) -> list[str]:
        """The update is complete; the checkpoint's names of what was replaced."""
        self._update.close()
        return self._update.applied

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> int:
        """A whole update, for functions that `collective_rpc` runs here; the number of tensors."""
        return len(self.loaded.store.update(weights))

    def weight_shape(self, name: str) -> torch.Size | None:
        """Of the whole model's tensor, under the checkpoint's name or a trainer's; None: there is none."""
        return self.loaded.store.targets.shape_of(trainer_name(name))

    def reload_weights(self) -> None:
        """Read the checkpoint again. Raises EngineAsleepError: the weights are asleep. See `WeightStore.load`."""
        self.loaded.store.check_resident()
        self.loaded.store.load()

    def layer_experts(self) -> list[LayerExperts]:
        """See `expert_places`, for this and the two that follow."""
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
        """Give all memory back, on a device that has failed, too. Idempotent."""
        self._unless_broken(self.setup.device.synchronize)
        self._undo.close()
        if self.is_accelerator:
            self._unless_broken(self.setup.device.trim)

    def _unless_broken(self, call: Callable[[], None]) -> None:
        """After an illegal access every call to a GPU fails: that must not hide the first error, nor keep memory."""
        try:
            call()
        except RuntimeError as error:
            logger.error("the device has failed, and with it every engine of this process on it: %s", error)
