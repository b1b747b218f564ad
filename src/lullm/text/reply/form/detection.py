"""The form of a model's replies: by names that a user gives, or by its chat template."""

import functools
from collections.abc import Callable, Mapping
from typing import TypeVar

from lullm.errors import ConfigError
from lullm.text.chat_template import ChatTemplate
from lullm.text.reply.form.catalogue import CALLS, HARMONY, THINKING
from lullm.text.reply.form.learning import learned_calls, learned_thinking
from lullm.types.reply.form import CallForm, ReplyForm, ThinkingForm

F = TypeVar("F", ThinkingForm, CallForm)

_CALL_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("openai", ("<|channel|>", "to=functions.")),
    ("gemma4", ("<|tool_call>",)),
    ("functiongemma", ("<start_function_call>",)),
    ("kimi_k2", ("<|tool_call_argument_begin|>",)),
    ("deepseek_v3", ("<｜tool▁sep｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁sep｜>",)),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("glm45", ("<tool_call>", "<arg_key>")),
    ("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    ("mistral", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral_list", ("[TOOL_CALLS]",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("granite", ("<|tool_call|>",)),
    ("nemotron_json", ("<TOOLCALL>",)),
    ("phi4_mini_json", ("functools[",)),
    ("hermes", ("<tool_call>", "</tool_call>")),
    ("llama3_json", ('"parameters": ', "ipython")),
)
"""Name -> texts that must all be in its templates. The first match counts, so special forms come first."""

_THINKING_SIGNS = (
    ("openai_gptoss", "<|channel|>analysis"),
    ("gemma4", "<|channel>"),
    ("mistral", "[THINK]"),
    ("seed_oss", "<seed:think>"),
    ("kimi", "◁think▷"),
    ("qwen3", "</think>"),
)

_OTHER_NAMES = {"qwen3_xml": "qwen3_coder", "llama4_json": "llama3_json", "llama4_pythonic": "pythonic"}
_OTHER_NAMES |= {"olmo3": "pythonic", "glm47": "glm45", "openai_gptoss": "openai", "seed_oss": "qwen3_coder"}
_OTHER_THINKING_NAMES = {"deepseek_v3": "qwen3", "openai": "openai_gptoss", "gptoss": "openai_gptoss"}


@functools.lru_cache(8)
def reply_form(template: ChatTemplate | None, calls: str | None, thinking: str | None) -> ReplyForm:
    """The form of a model's replies. Learning takes milliseconds, so it is done once.

    Args:
        calls, thinking: names from the catalogue, 'none', 'template' (learned from the chat template), or None: found
            by texts in the template, or learned.

    Raises:
        ConfigError: there is no such name, or nothing can be learned.
    """
    text = "\n".join(template.sources.values()) if template else ""
    calls, thinking = _OTHER_NAMES.get(calls or "", calls), _OTHER_THINKING_NAMES.get(thinking or "", thinking)
    if calls is None:
        calls = next((name for name, signs in _CALL_SIGNS if all(sign in text for sign in signs)), "none")
        calls = "template?" if calls == "none" and "tool_calls" in text else calls
    elif calls == "mistral" and "[TOOL_CALLS]" in text and "[ARGS]" not in text:
        calls = "mistral_list"
    if thinking is None:
        thinking = next((name for name, sign in _THINKING_SIGNS if sign in text), "none")
        thinking = "template?" if thinking == "none" and "reasoning" in text else thinking
    has_headers = "openai" in calls or thinking == "openai_gptoss"
    thoughts = _form("reasoning_parser", thinking, THINKING, template, learned_thinking, "no thoughts")
    called = _form("tool_call_parser", calls, CALLS, template, learned_calls, "no calls that can be read")
    return ReplyForm(thoughts, called, HARMONY if has_headers else None)


def _form(
    option: str,
    name: str,
    known: Mapping[str, F],
    template: ChatTemplate | None,
    learn: Callable[[ChatTemplate], F | None],
    lacks: str,
) -> F | None:
    """The form of this name. `learn` reads it from the template; `lacks`: what a template without it shows."""
    if name.startswith("template"):
        form = learn(template) if template else None
        if form is None and name == "template":
            raise ConfigError(f"{option} 'template': the chat template shows {lacks}")
        return form
    if name != "none" and name not in known:
        raise ConfigError(f"no {option} is named {name!r}; there are {', '.join(known)}, template and none")
    return known.get(name)
