"""A request's rules for its reply: the tools that the model may call, and how the reply is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lullm.types.reply.form import ReplyForm


@dataclass(frozen=True, slots=True)
class CallRules:
    """Whether the model may call tools.

    Args:
        choice: 'auto': the model decides; 'none': it cannot; 'required': it calls at least one.
        names: of the only tools that may be called; None: any of the request's.
        is_parallel: it may call several in a reply.
    """

    choice: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None
    is_parallel: bool = True


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters`: a JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class ThinkingTokens:
    """Thoughts among output tokens: they begin after `open_ids` and end with `close_ids`; neither is empty.

    `begins_inside`: the prompt has opened them. `may_begin`: it has not closed them either, so the model may open them.
    """

    open_ids: tuple[int, ...]
    close_ids: tuple[int, ...]
    begins_inside: bool
    may_begin: bool = True


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """How the replies to one request are read.

    Args:
        tools: the callable tools; with none, text that looks like a call stays text.
        thinking: None: no text is read as a thought.
        shown_token_ids: special tokens of the form's marks, which must appear in the text.
    """

    form: ReplyForm
    tools: tuple[Tool, ...] = ()
    calls: CallRules = CallRules()
    thinking: ThinkingTokens | None = None
    shown_token_ids: frozenset[int] = frozenset()
