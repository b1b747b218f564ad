"""FleetOptions: the options of a fleet, beside those of its models; ModelSpec: one of its models."""

from dataclasses import dataclass
from typing import Literal, get_args

from lullm.config.engine import EngineConfig
from lullm.config.lora.module import LoraModule
from lullm.config.option.option import described, option, options_of
from lullm.config.option.sleep_after import SleepRung
from lullm.errors import ConfigError

Eviction = Literal["1", "ram", "disk", "2", "unload"]
"""How a model makes room: asleep at level 1 or 2, as in `sleep_after`, or unloaded."""

_RUNGS: dict[Eviction, SleepRung | None] = {
    "1": SleepRung(0.0, 1, "auto"),
    "ram": SleepRung(0.0, 1, "ram"),
    "disk": SleepRung(0.0, 1, "disk"),
    "2": SleepRung(0.0, 2, "auto"),
    "unload": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Options of several models behind one server. Raises ConfigError: a value is out of range."""

    models_config: str | None = option(
        None,
        "YAML file of models: a section for each with its flags, such as `model`, `aliases`, `preload`, `pinned`, "
        "`sleep-after`, `lora-modules`, `prompt-adapters`, and a section '*' for all",
        "fleet",
        value_name="FILE",
    )
    memory_budget: int | None = option(
        None,
        "memory for all models together: weights, KV caches, a step's working memory, like 8GiB; the least recently "
        "used make room for others (default: 90 % of what is available at the start)",
        "fleet",
        least=1,
        unit="bytes",
    )
    max_model_wait_s: float = option(
        300.0,
        "seconds that a request waits for its model; then it gets a 503",
        "fleet",
        flag="max-model-wait",
        above=0,
        below=float("inf"),
        unit="seconds",
    )
    model_slice_s: float = option(
        5.0,
        "seconds that a busy model keeps its memory while requests for others wait, and an idle one a tenth of that",
        "fleet",
        flag="model-slice",
        least=0,
        below=float("inf"),
        unit="seconds",
    )

    def __post_init__(self) -> None:
        for each in options_of(FleetOptions):
            each.check(getattr(self, each.name))
        if self.model_slice_s >= self.max_model_wait_s:
            raise ConfigError(
                f"model_slice ({self.model_slice_s:g} s) must be below max_model_wait ({self.max_model_wait_s:g} s): "
                "otherwise requests are refused while they wait for their turn"
            )


FleetOptions.__doc__ = f"{FleetOptions.__doc__}\n\n{described(FleetOptions)}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model of a fleet.

    Args:
        name: by which requests call it, as in answers. aliases: more names.
        config: of its engine, with `enable_sleep_mode`. Its `sleep_after` is the model's own ladder.
        preload: load it at the start, before its first request.
        pinned: once awake, it never makes room for others.
        evict_to: how it makes room.
        lora_modules, prompt_adapters: its adapters, each a model of its own name.

    Raises:
        ConfigError: a name is empty, `evict_to` is unknown, or adapters are not for this model.
    """

    name: str
    config: EngineConfig
    aliases: tuple[str, ...] = ()
    preload: bool = False
    pinned: bool = False
    evict_to: Eviction = "1"
    lora_modules: tuple[LoraModule, ...] = ()
    prompt_adapters: tuple[LoraModule, ...] = ()

    def __post_init__(self) -> None:
        if not all((self.name, *self.aliases)):
            raise ConfigError("a model name must not be empty")
        if not self.config.enable_sleep_mode:
            raise ConfigError(f"the model {self.name!r} needs enable_sleep_mode=True, to make room for others")
        if self.evict_to not in get_args(Eviction):
            raise ConfigError(f"evict_to must be one of {', '.join(get_args(Eviction))}, not {self.evict_to!r}")
        if self.lora_modules and not self.config.enable_lora:
            raise ConfigError(f"the model {self.name!r} has lora_modules, which need enable_lora=True")
        if self.prompt_adapters and not self.config.enable_prompt_adapter:
            raise ConfigError(f"the model {self.name!r} has prompt_adapters, which need enable_prompt_adapter=True")
        for module in (*self.lora_modules, *self.prompt_adapters):
            if module.base not in (None, *self.names):
                raise ConfigError(
                    f"the adapter {module.name!r} of the model {self.name!r} says that it is for {module.base!r}; "
                    "leave out base_model_name, or name it at that model"
                )

    @property
    def eviction(self) -> SleepRung | None:
        """The sleep that makes room; None: it is unloaded."""
        return _RUNGS[self.evict_to]

    @property
    def names(self) -> tuple[str, ...]:
        """All its names, its own first."""
        return tuple(dict.fromkeys((self.name, *self.aliases)))


def check_names(specs: "list[ModelSpec] | tuple[ModelSpec, ...]") -> None:
    """Check that no two models or adapters have a name in common. Raises ConfigError."""
    owners: dict[str, str] = {}
    for spec in specs:
        for name in (*spec.names, *(module.name for module in (*spec.lora_modules, *spec.prompt_adapters))):
            if name in owners:
                raise ConfigError(
                    f"two models are called {name!r}; name one of them: NAME=MODEL on the command line, or another "
                    "section, alias or adapter in the models file"
                )
            owners[name] = spec.name
