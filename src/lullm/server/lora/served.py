"""ServedAdapters: the adapters of one engine that requests may name as their model."""

from lullm.engine.client import EngineClient
from lullm.errors import InvalidRequestError, LullmError, ModelLoadError
from lullm.log import get_logger
from lullm.server.error import ApiError
from lullm.types.lora.request import LoRARequest

logger = get_logger(__name__)


class ServedAdapters:
    """The adapters of one engine by their names. Lives on the event loop's thread.

    `House` sees to it that names differ, and that one name is loaded or unloaded at a time.
    """

    def __init__(self, engine: EngineClient):
        self._engine = engine
        self._adapters: dict[str, LoRARequest] = {}
        self._num_ids = 0

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of their loading."""
        return tuple(self._adapters)

    def of(self, model: str | None) -> LoRARequest | None:
        """The adapter that a request names as its model; None: it names the model itself. Ollama's names have a tag."""
        if not self._adapters or model is None:
            return None
        return self._adapters.get(model) or self._adapters.get(model.removesuffix(":latest"))

    async def load(self, name: str, path: str) -> None:
        """Load an adapter under a name. Raises ApiError 400: it is no adapter for the model."""
        self._num_ids += 1
        try:
            lora = LoRARequest(name, self._num_ids, path)
            await self._engine.add_lora(lora)
        except (InvalidRequestError, ModelLoadError) as error:
            param = "lora_name" if str(error).startswith("lora_name") else "lora_path"
            raise ApiError(400, str(error), param=param, code="invalid_adapter") from None
        self._adapters[name] = lora
        logger.info("adapter %r: %s", name, path)

    async def unload(self, name: str) -> None:
        """Forget an adapter, which must be there; requests that have it go on."""
        lora = self._adapters.pop(name)
        try:
            await self._engine.remove_lora(lora.lora_int_id)
        except LullmError:
            self._adapters[name] = lora
            raise
        logger.info("adapter %r: unloaded", name)
