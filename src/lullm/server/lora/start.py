"""The adapters that a server has from its start."""

from collections.abc import Iterable

from lullm.config.lora.module import LoraModule, parse_module
from lullm.errors import ConfigError
from lullm.server.context import House
from lullm.server.error import ApiError
from lullm.server.lora.served import Adapter
from lullm.types.lora.prompt_adapter import PromptAdapterRequest
from lullm.types.lora.request import LoRARequest


async def load_modules(house: House, loras: Iterable[str], prompt_adapters: Iterable[str]) -> None:
    """Load the adapters of each model of a fleet, and those that the server's options name (the arguments).

    Raises ConfigError: a name is taken, or one is no adapter for its model.
    """
    given: tuple[tuple[type[Adapter], str, Iterable[str]], ...]
    given = (LoRARequest, "lora_modules", loras), (PromptAdapterRequest, "prompt_adapters", prompt_adapters)
    members = [] if house.fleet is None else house.fleet.members.values()
    for kind, option, texts in given:
        modules: list[tuple[LoraModule, str | None]]
        modules = [(module, member.name) for member in members for module in getattr(member.spec, option)]
        # One model alone is the base of all, whatever name they have for it.
        own = [parse_module(text, option) for text in texts]
        modules += [(module, module.base if members else None) for module in own]
        for module, model in modules:
            try:
                await house.load_adapter(module.name, module.path, model, kind)
            except ApiError as error:
                raise ConfigError(f"{option} {module.name}: {error}") from None
