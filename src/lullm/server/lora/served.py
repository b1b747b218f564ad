"""ServedAdapters: the adapters that requests may name as their model."""

import asyncio
from collections.abc import Iterable

from lullm.engine.client import EngineClient
from lullm.errors import ConfigError, InvalidRequestError, LullmError, ModelLoadError
from lullm.log import get_logger
from lullm.server.error import ApiError
from lullm.server.lora.module import LoraModule
from lullm.types.lora.request import LoRARequest

logger = get_logger(__name__)


class ServedAdapters:
    """The adapters of one engine by their names. Lives on the event loop's thread."""

    def __init__(self, engine: EngineClient):
        self._engine = engine
        self._adapters: dict[str, LoRARequest] = {}
        self._num_loaded = 0
        self._changing = asyncio.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of their loading."""
        return tuple(self._adapters)

    def of(self, model: str | None) -> LoRARequest | None:
        """The adapter that a request names as its model; None: it names the model itself. Ollama's names have a tag."""
        if not self._adapters or model is None:
            return None
        return self._adapters.get(model) or self._adapters.get(model.removesuffix(":latest"))

    async def load_all(self, modules: Iterable[LoraModule], taken: Iterable[str]) -> None:
        """Load the adapters of the command line. `taken`: the model's own names.

        Raises ConfigError: two have the same name, or one is no adapter for the model.
        """
        for module in modules:
            try:
                await self.load(module.name, module.path, taken)
            except ApiError as error:
                raise ConfigError(f"--lora-modules {module.name}: {error}") from None

    async def load(self, name: str, path: str, taken: Iterable[str]) -> None:
        """Load an adapter under a name. Raises ApiError 400: the name is taken, or it is no adapter for the model."""
        async with self._changing:
            if name in self._adapters or name in taken:
                raise ApiError(400, f"there is a model {name!r} already; unload it first", param="lora_name")
            try:
                lora = LoRARequest(name, self._num_loaded + 1, path)
                await self._engine.add_lora(lora)
            except (InvalidRequestError, ModelLoadError) as error:
                raise ApiError(400, str(error), param="lora_path", code="invalid_adapter") from None
            self._num_loaded += 1
            self._adapters[name] = lora
            logger.info("adapter %r: %s", name, path)

    async def unload(self, name: str) -> None:
        """Forget an adapter; requests that have it go on. Raises ApiError 404: there is none of this name."""
        async with self._changing:
            lora = self._adapters.pop(name, None)
            if lora is None:
                known = ", ".join(map(repr, self._adapters)) or "none"
                raise ApiError(404, f"there is no adapter {name!r}; there are: {known}", param="lora_name")
            try:
                await self._engine.remove_lora(lora.lora_int_id)
            except LullmError:
                self._adapters[name] = lora
                raise
            logger.info("adapter %r: unloaded", name)
