"""ServedAdapters: the adapters of one engine that requests may name as their model."""

import asyncio

from lullm.engine.client import EngineClient
from lullm.errors import InvalidRequestError, LullmError, ModelLoadError
from lullm.log import get_logger
from lullm.server.error import ApiError
from lullm.types.lora.prompt_adapter import PromptAdapterRequest
from lullm.types.lora.request import LoRARequest

logger = get_logger(__name__)

Adapter = LoRARequest | PromptAdapterRequest


class ServedAdapters:
    """The adapters of one engine by their names, of LoRA and prompt adapters. Lives on the event loop's thread.

    `House` sees to it that names differ, and that one name is loaded or unloaded at a time.
    """

    def __init__(self, engine: EngineClient):
        self._engine = engine
        self._adapters: dict[str, Adapter] = {}
        self._num_ids = 0

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of their loading."""
        return tuple(self._adapters)

    def of(self, model: str | None) -> Adapter | None:
        """The adapter that a request names as its model; None: it names the model itself. Ollama's names have a tag."""
        if not self._adapters or model is None:
            return None
        return self._adapters.get(model) or self._adapters.get(model.removesuffix(":latest"))

    async def load(self, name: str, path: str, kind: type[Adapter] = LoRARequest) -> None:
        """Load an adapter under a name. Raises ApiError 400: it is no such adapter for the model."""
        self._num_ids += 1
        try:
            adapter = kind(name, self._num_ids, path)
            if isinstance(adapter, LoRARequest):
                await self._engine.add_lora(adapter)
            else:
                await asyncio.to_thread(self._engine.prompt_adapters.add, adapter)
        except (InvalidRequestError, ModelLoadError) as error:
            param = "lora_name" if str(error).startswith("lora_name") else "lora_path"
            raise ApiError(400, str(error), param=param, code="invalid_adapter") from None
        self._adapters[name] = adapter
        logger.info("adapter %r: %s", name, path)

    async def unload(self, name: str) -> None:
        """Forget an adapter, which must be there; requests that have it go on."""
        adapter = self._adapters.pop(name)
        try:
            if isinstance(adapter, LoRARequest):
                await self._engine.remove_lora(adapter.lora_int_id)
            else:
                self._engine.prompt_adapters.remove(adapter.adapter_id)
        except LullmError:
            self._adapters[name] = adapter
            raise
        logger.info("adapter %r: unloaded", name)
