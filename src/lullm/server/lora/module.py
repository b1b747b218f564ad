"""LoraModule: an adapter as the command line names it, NAME=PATH or vLLM's JSON."""

import json
from dataclasses import dataclass

from lullm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoraModule:
    """An adapter and the name that requests call it by."""

    name: str
    path: str


def parse_module(text: str) -> LoraModule:
    """`'sql=/adapters/sql'` or `'{"name": "sql", "path": "/adapters/sql"}'`. Raises ConfigError."""
    name, _, path = text.partition("=")
    if text.startswith("{"):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"--lora-modules {text:.200} is not JSON: {error}") from None
        if not isinstance(data, dict):
            raise ConfigError(f"--lora-modules takes NAME=PATH, not {text:.200}")
        unknown = sorted(data.keys() - {"name", "path", "base_model_name"})
        if unknown:
            raise ConfigError(f"--lora-modules: an adapter has name and path, not {', '.join(unknown)}")
        name, path = data.get("name", ""), data.get("path", "")
    if not (isinstance(name, str) and isinstance(path, str) and name and path):
        raise ConfigError(f"--lora-modules takes NAME=PATH, not {text!r}")
    return LoraModule(name, path)
