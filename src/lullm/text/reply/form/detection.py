"""Which form a model's replies have: by names that a user gives, or by what its chat template writes."""

from collections.abc import Mapping

from lullm.errors import ConfigError
from lullm.text.reply.form.catalogue import CALLS, HARMONY, THINKING
from lullm.types.reply.form import CallForm, ReplyForm, ThinkingForm

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
"""Name -> texts that all stand in its templates. The first that fits counts: what is special stands before the rest."""

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


def reply_form(sources: Mapping[str, str], calls: str | None, thinking: str | None) -> ReplyForm:
    """The form of a model's replies.

    Args:
        sources: the chat templates, by name. calls, thinking: names from the catalogue, 'none', or None: to be found.

    Raises:
        ConfigError: there is no such name.
    """
    text = "\n".join(sources.values())
    calls, thinking = _OTHER_NAMES.get(calls or "", calls), _OTHER_THINKING_NAMES.get(thinking or "", thinking)
    if calls is None:
        calls = next((name for name, signs in _CALL_SIGNS if all(sign in text for sign in signs)), "none")
    elif calls == "mistral" and "[TOOL_CALLS]" in text and "[ARGS]" not in text:
        calls = "mistral_list"
    if thinking is None:
        thinking = next((name for name, sign in _THINKING_SIGNS if sign in text), "none")
    has_headers = "openai" in calls or thinking == "openai_gptoss"
    return ReplyForm(_thinking(thinking), _calls(calls), HARMONY if has_headers else None)


def _thinking(name: str) -> ThinkingForm | None:
    if name != "none" and name not in THINKING:
        raise ConfigError(f"no reasoning_parser is named {name!r}; there are {', '.join(THINKING)}, and none")
    return THINKING.get(name)


def _calls(name: str) -> CallForm | None:
    if name != "none" and name not in CALLS:
        raise ConfigError(f"no tool_call_parser is named {name!r}; there are {', '.join(CALLS)}, and none")
    return CALLS.get(name)
