"""The adapters that a server has from its start."""

from collections.abc import Iterable

from lullm.config.lora.module import LoraModule, parse_module
from lullm.errors import ConfigError
from lullm.server.context import House
from lullm.server.error import ApiError


async def load_modules(house: House, given: Iterable[str]) -> None:
    """Load the adapters of each model of a fleet, and those that the server's options name (`given`).

    Raises ConfigError: a name is taken, or one is no adapter for its model.
    """
    members = [] if house.fleet is None else house.fleet.members.values()
    modules: list[tuple[LoraModule, str | None]]
    modules = [(module, member.name) for member in members for module in member.spec.lora_modules]
    # One model alone is the base of all, whatever name they have for it.
    modules += [(module, module.base if members else None) for module in map(parse_module, given)]
    for module, model in modules:
        try:
            await house.load_adapter(module.name, module.path, model)
        except ApiError as error:
            raise ConfigError(f"lora_modules {module.name}: {error}") from None
