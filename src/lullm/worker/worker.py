"""Worker: one device's share of the model, behind the calls an executor makes."""

from pathlib import Path

from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.types.sleep import SleepReport, UsedBlocks
from lullm.types.step import StepPlan, StepResult
from lullm.worker.device import available_memory_bytes
from lullm.worker.model_runner import ModelRunner
from lullm.worker.sleeper import Sleeper


class Worker:
    """Runs plans on one device. Every method blocks until it is done."""

    def __init__(self, config: EngineConfig, model_config: ModelConfig, folder: Path):
        self.model_runner = ModelRunner(config, model_config, folder)
        directory = Path(config.sleep_dir) if config.sleep_dir else None
        self._sleeper = Sleeper(self.model_runner, directory, config.verify_wake)

    def load_model(self) -> None:
        """Raises ModelLoadError, CacheSizeError."""
        self.model_runner.load_model()

    def available_memory_bytes(self) -> int:
        """Memory of the device that is left for the KV cache."""
        return available_memory_bytes()

    def initialize_cache(self, num_blocks: int, num_host_blocks: int) -> None:
        self.model_runner.initialize_cache(num_blocks, num_host_blocks)

    def measure_speeds(self) -> tuple[float, float]:
        """See `ModelRunner.measure_speeds`."""
        return self.model_runner.measure_speeds()

    def execute_model(self, plan: StepPlan) -> StepResult:
        return self.model_runner.execute(plan)

    def sleep(self, level: int, tags: tuple[str, ...], used: UsedBlocks) -> SleepReport:
        """See `Sleeper.sleep`."""
        return self._sleeper.sleep(level, tags, used)

    def wake_up(self, tags: tuple[str, ...]) -> None:
        """See `Sleeper.wake_up`."""
        self._sleeper.wake_up(tags)

    def shutdown(self) -> None:
        """Give all memory back. Idempotent."""
        self._sleeper.close()
        self.model_runner.close()
