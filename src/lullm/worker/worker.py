"""Worker: one device's share of the model, behind the calls an executor makes."""

from collections.abc import Iterable
from pathlib import Path

import torch

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.types.sleep import Action, SleepForecast, SleepOrder, SleepReport
from lullm.types.step import Running, StepPlan, StepResult
from lullm.weights.store import WeightStore
from lullm.worker.model_runner import ModelRunner
from lullm.worker.sleeper import Sleeper


class Worker:
    """Runs plans on one device. Every method but `launch_model` blocks until it is done."""

    def __init__(self, config: ResolvedConfig, model_config: ModelConfig, folder: Path):
        self.model_runner = ModelRunner(config, model_config, folder)
        directory = Path(config.sleep_dir) if config.sleep_dir else None
        self._sleeper = Sleeper(self.model_runner, directory, config.verify_wake, config.keep_backup)

    def load_model(self) -> None:
        """Raises ModelLoadError, CacheSizeError."""
        self.model_runner.load_model()

    def available_memory_bytes(self) -> int:
        """Memory of the device that nobody holds."""
        return self.model_runner.device.memory_info().free_bytes

    def kv_memory_bytes(self) -> int:
        """See `ModelRunner.kv_memory_bytes`; before `initialize_cache`."""
        return self.model_runner.kv_memory_bytes()

    def initialize_cache(self, num_blocks: int, num_host_blocks: int) -> None:
        self.model_runner.initialize_cache(num_blocks, num_host_blocks)

    def measure_speeds(self) -> tuple[float, float]:
        """See `ModelRunner.measure_speeds`."""
        return self.model_runner.measure_speeds()

    def launch_model(self, plan: StepPlan) -> Running[StepResult]:
        """See `ModelRunner.launch`. Does not block for the step."""
        return self.model_runner.launch(plan)

    def execute_model(self, plan: StepPlan) -> StepResult:
        return self.model_runner.execute(plan)

    def sleep(self, order: SleepOrder) -> tuple[SleepReport, str | None]:
        """See `Sleeper.sleep`."""
        return self._sleeper.sleep(order)

    def wake_up(self, tag: str, action: Action) -> int:
        """See `Sleeper.wake_up`."""
        return self._sleeper.wake_up(tag, action)

    def forecast_sleep(self, order: SleepOrder) -> SleepForecast:
        """See `Sleeper.forecast`."""
        return self._sleeper.forecast(order)

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> int:
        """See `WeightStore.update`; the number of tensors."""
        return len(self._store.update(weights))

    def reload_weights(self) -> None:
        """Read the checkpoint again. Raises EngineAsleepError: the weights are asleep. See `WeightStore.load`."""
        self._store.check_resident()
        self._store.load()

    def reset_kv_scales(self) -> None:
        """See `ModelRunner.reset_kv_scales`."""
        self.model_runner.reset_kv_scales()

    def weights_version(self) -> int:
        """See `WeightStore`."""
        return self._store.version

    def has_pushed_weights(self) -> bool:
        """Whether weights were changed since they were loaded or woke up."""
        return self._store.has_news

    def modified_weights(self) -> list[str]:
        """Parameters that differ from the checkpoint, by name."""
        return sorted(self._store.modified)

    def resident_bytes(self) -> dict[str, int]:
        """Physical memory behind each arena now, by tag."""
        return self._sleeper.resident_bytes()

    @property
    def _store(self) -> WeightStore:
        assert self.model_runner.model.store is not None, "loaded"
        return self.model_runner.model.store

    def shutdown(self) -> None:
        """Give all memory back. Idempotent."""
        self._sleeper.close()
        self.model_runner.close()
