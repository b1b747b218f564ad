"""Writes docs/python.md from the signatures and docstrings of the public names.

PYTHONPATH=src:tests python -m docs.reference
"""

import dataclasses
import enum
import inspect
import re
from typing import Any

from docs.markdown import ROOT

import lullm

PAGE = ROOT / "docs" / "python.md"
HEAD = """\
# The Python API

Every public name of `lullm`, from the code: `PYTHONPATH=src:tests python -m docs.reference` writes this page, and a
test holds it fresh. What differs from vLLM stands in [from-vllm.md](from-vllm.md), programs in
[examples/](../examples/README.md). Errors are of `lullm.errors`; each is a `LullmError`.
"""
GROUPS = {
    "Generate": (
        "LLM",
        "SamplingParams",
        "BeamSearchParams",
        "StructuredOutputsParams",
        "RequestOutput",
        "CompletionOutput",
        "RequestOutputKind",
        "LoRARequest",
        "PromptAdapterRequest",
        "TextPrompt",
        "TokensPrompt",
        "EmbedsPrompt",
    ),
    "Options": ("EngineConfig", "EngineArgs", "AsyncEngineArgs"),
    "Vectors and scores": (
        *("PoolingParams", "PoolingRequestOutput", "EmbeddingRequestOutput", "ClassificationRequestOutput"),
        "ScoringRequestOutput",
    ),
    "Engines": ("LLMEngine", "AsyncLLMEngine", "register_model"),
}
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):", re.M)
_MOST_SHOWN = 30
"""Parameters in a heading; those of options stand in their own section."""


def page() -> str:
    parts = [HEAD]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += _entry(name, getattr(lullm, name))
    return "\n".join(parts)


def _entry(name: str, what: Any) -> list[str]:
    parts = [f"### `{name}{_signature(what)}`\n", *_prose(what)]
    if inspect.isclass(what) and not dataclasses.is_dataclass(what) and not issubclass(what, (enum.Enum, dict)):
        for method, member in inspect.getmembers(what):
            if method.startswith("_") or not inspect.getdoc(member):
                continue
            call = "" if isinstance(member, property) else _signature(member)
            parts += [f"#### `{name}.{method}{call}`\n", *_prose(member)]
    return parts


def _signature(what: Any) -> str:
    if inspect.isclass(what) and issubclass(what, enum.Enum):
        return ""
    if hasattr(what, "__origin__"):
        return f" = {what}".replace("lullm.types.pooling.outputs.", "")
    try:
        parameters = list(inspect.signature(what).parameters.values())
    except ValueError:
        return ""
    if len(parameters) > _MOST_SHOWN:
        return "(...)"
    shown, is_behind_star = [], False
    for each in parameters:
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not is_behind_star:
            shown.append("*")
            is_behind_star = True
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        is_behind_star |= each.kind is each.VAR_POSITIONAL
        default = "" if each.default is each.empty else f"={_default(each.default)}"
        shown.append(f"{star}{each.name}{default}")
    return f"({', '.join(shown)})"


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return "..." if "factory" in repr(value) or " at 0x" in repr(value) else repr(value)


def _prose(what: Any) -> list[str]:
    """The docstring: its first part as it is, and its sections as they are aligned."""
    text = "" if hasattr(what, "__origin__") else inspect.getdoc(what) or ""
    found = _SECTION.search(text)
    first, rest = (text, "") if found is None else (text[: found.start()].rstrip(), text[found.start() :].rstrip())
    parts = [first + "\n"] if first else []
    return parts + ([f"```text\n{rest}\n```\n"] if rest else [])


if __name__ == "__main__":
    PAGE.write_text(page())
