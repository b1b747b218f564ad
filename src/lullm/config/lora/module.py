"""LoraModule: an adapter of a server as its options name it, NAME=PATH or vLLM's JSON."""

import json
from dataclasses import dataclass
from typing import Any

from lullm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoraModule:
    """An adapter and the name that requests call it by. `base`: a name of its model; None: not said."""

    name: str
    path: str
    base: str | None = None


def parse_module(text: str, option: str = "lora_modules") -> LoraModule:
    """`'sql=/adapters/sql'` or `'{"name": "sql", "path": "/adapters/sql", "base_model_name": "tiny"}'`.

    `option`: which named it, for errors. Raises ConfigError.
    """
    name, _, path = text.partition("=")
    base: Any = None
    if text.startswith("{"):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{option}: {text:.200} is not JSON: {error}") from None
        if not isinstance(data, dict):
            raise ConfigError(f"{option} takes NAME=PATH, not {text:.200}")
        unknown = sorted(data.keys() - {"name", "path", "base_model_name"})
        if unknown:
            raise ConfigError(f"{option}: an adapter has name, path and base_model_name, not {', '.join(unknown)}")
        name, path, base = data.get("name", ""), data.get("path", ""), data.get("base_model_name")
    if not (isinstance(name, str) and isinstance(path, str) and isinstance(base, str | None) and name and path):
        raise ConfigError(f"{option} takes NAME=PATH, not {text!r}")
    return LoraModule(name, path, base)
