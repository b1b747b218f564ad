"""UniProcExecutor: one worker in the engine's own process and thread."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.errors import EngineDeadError, InvalidRequestError, UnsupportedError
from lullm.kv.layout import num_blocks_within, num_host_blocks_within
from lullm.types.step import Running, StepPlan, StepResult
from lullm.worker.worker import Worker


class UniProcExecutor:
    """Builds its worker and loads the model at once. Implements `Executor`; the config must be resolved."""

    def __init__(self, config: ResolvedConfig, model_config: ModelConfig, folder: Path):
        self._config = config
        self._model_config = model_config
        self._is_shut_down = False
        self.driver_worker = Worker(config, model_config, folder)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        if timeout is not None:
            raise UnsupportedError("a call on the caller's own thread cannot be cut off; leave timeout out")
        if callable(method):
            return [method(self.driver_worker, *args, **(kwargs or {}))]
        function = None if method.startswith("_") else getattr(self.driver_worker, method, None)
        if not callable(function):
            raise InvalidRequestError(f"workers have no method {method!r}", "method")
        return [function(*args, **(kwargs or {}))]

    @property
    def weights_version(self) -> int:
        return self.driver_worker.weights_version()

    @property
    def has_pushed_weights(self) -> bool:
        return self.driver_worker.has_pushed_weights()

    def determine_num_available_blocks(self) -> tuple[int, int]:
        available = self.driver_worker.kv_memory_bytes()
        num_blocks = num_blocks_within(self._config, self._model_config, available)
        return num_blocks, num_host_blocks_within(self._config, self._model_config, num_blocks)

    def initialize_cache(self, num_blocks: int, num_host_blocks: int, max_model_len: int) -> None:
        self.driver_worker.initialize_cache(num_blocks, num_host_blocks, max_model_len)

    def measure_speeds(self) -> tuple[float, float]:
        return self.driver_worker.measure_speeds()

    def launch_model(self, plan: StepPlan) -> Running[StepResult]:
        self.check_health()
        return self.driver_worker.launch_model(plan)

    def check_health(self) -> None:
        if self._is_shut_down:
            raise EngineDeadError("the engine has been shut down")

    def shutdown(self) -> None:
        self._is_shut_down = True
        self.driver_worker.shutdown()
