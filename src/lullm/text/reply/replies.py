"""Replies: the form of one model's replies, and the rules that each request gets from it."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from lullm.errors import ConfigError, InvalidRequestError
from lullm.text.chat_template import ChatTemplate
from lullm.text.reply.form.catalogue import CALLS
from lullm.text.reply.form.detection import reply_form
from lullm.text.reply.grammar.reply import reply_grammar
from lullm.text.tokenizer import Tokenizer
from lullm.types.reply.form import ReplyForm
from lullm.types.reply.rules import ReplyRules, ThinkingTokens, Tool
from lullm.types.request import THINKING_VARIABLES, Conversation

_MAX_TOOLS = 1024
_TRIAL = [{"role": "user", "content": "Hello!"}]
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}  # OpenAI's: left out means none
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


class Replies:
    """The form of a model's replies. Thread-safe.

    Args:
        calls, thinking: names of forms, 'none', or None: found in the chat template.
        thinks: whether the model thinks where a request does not say; None: the template's default.
        defaults: the template's variables where a request does not say them.

    Raises:
        ConfigError: there is no such name; `thinks` is given, and the template has no switch for it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        calls: str | None,
        thinking: str | None,
        thinks: bool | None,
        defaults: Mapping[str, Any] = MappingProxyType({}),
    ):
        self._tokenizer = tokenizer
        self.form = reply_form(tokenizer.chat_template, calls, thinking)
        self._marks: dict[bool, frozenset[int]] = {}
        self._defaults = dict(defaults) if thinks is None else {**defaults, **thinking_options(thinks)}
        if thinks is not None and not _has_switch(tokenizer.chat_template):
            raise ConfigError(
                f"think={thinks}: this model's chat template knows no enable_thinking; leave --think and --no-think out"
            )

    def options(self, conversation: Conversation) -> dict[str, Any]:
        """The template's variables beside the messages."""
        options = {**self._defaults, **conversation.options}
        if conversation.calls.choice == "none":
            options.pop("tools", None)
        return options

    def rules(self, conversation: Conversation, prompt: str) -> ReplyRules:
        """The rules for reading the reply. `prompt`: the rendered conversation.

        Raises:
            InvalidRequestError: the rules for calls do not fit the tools; the model's form of calls is not known.
        """
        tools = self._tools(conversation)
        form = self.form
        if form.calls is None and conversation.calls.choice == "required":  # the grammar enforces it
            form = replace(form, calls=CALLS["hermes"])
        return ReplyRules(
            form=form,
            tools=tools,
            calls=conversation.calls,
            thinking=self._thinking(prompt),
            shown_token_ids=self._mark_ids(bool(tools)),
        )

    def grammar(self, rules: ReplyRules, end_token_ids: Sequence[int], has_form: bool) -> str | None:
        """See `reply_grammar`."""
        return reply_grammar(rules, self._added, end_token_ids, has_form)

    @functools.cached_property
    def _added(self) -> dict[str, int]:
        return {token.content: n for n, token in self._tokenizer.backend.get_added_tokens_decoder().items()}

    def _tools(self, conversation: Conversation) -> tuple[Tool, ...]:
        rules = conversation.calls
        tools = _checked_tools(conversation.options.get("tools") or ())
        names = {tool.name for tool in tools}
        if rules.choice == "required" and not tools:
            raise InvalidRequestError("a tool must be called, and tools names none", "tools")
        for name in rules.names or ():
            if name not in names:
                raise InvalidRequestError(
                    f"tool_choice names {name!r}, which is none of tools: {', '.join(sorted(names))}", "tool_choice"
                )
        if rules.choice == "none":
            return ()
        if tools and self.form.calls is None and rules.choice == "auto":
            raise InvalidRequestError(
                "how this model writes calls of tools is not known: its chat template does not show it; start with "
                "--tool-call-parser NAME, ask for a call with tool_choice 'required', or leave tools out",
                "tools",
            )
        return tuple(tool for tool in tools if rules.names is None or tool.name in rules.names)

    def _thinking(self, prompt: str) -> ThinkingTokens | None:
        form = self.form.thinking
        if form is None:
            return None
        open_ids, close_ids = self._thinking_ids
        end = prompt.rstrip()
        begins_inside = form.begins_inside or end.endswith(form.open.strip())
        return ThinkingTokens(open_ids, close_ids, begins_inside, may_begin=not end.endswith(form.close.strip()))

    @functools.cached_property
    def _thinking_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        form = self.form.thinking
        assert form is not None
        encode = functools.partial(self._tokenizer.encode, add_special_tokens=False)
        return tuple(encode(form.open.strip())), tuple(encode(form.close.strip()))

    def _mark_ids(self, with_calls: bool) -> frozenset[int]:
        """The special tokens in the form's marks."""
        if with_calls not in self._marks:
            self._marks[with_calls] = self._found_marks(with_calls)
        return self._marks[with_calls]

    def _found_marks(self, with_calls: bool) -> frozenset[int]:
        form = self.form if with_calls else ReplyForm(self.form.thinking, None, self.form.header)
        texts = [text for text in form.texts if text]
        spelled = ((token_id, self._tokenizer.decode_token(token_id)) for token_id in self._tokenizer.special_token_ids)
        return frozenset(token_id for token_id, name in spelled if name and any(name in text for text in texts))


def _has_switch(template: ChatTemplate | None) -> bool:
    """Whether thinking can be turned on and off: the prompt changes."""
    if template is None:
        return False
    try:
        on, off = (template.render(_TRIAL, **thinking_options(thinks)) for thinks in (True, False))
    except InvalidRequestError:
        return True  # it requires other messages, so its switch is unknown
    return on != off


def thinking_options(thinks: bool) -> dict[str, Any]:
    """The template's variables that turn thinking on or off."""
    return dict.fromkeys(THINKING_VARIABLES, thinks)


def _checked_tools(tools: Sequence[Any]) -> tuple[Tool, ...]:
    """Tools in OpenAI's form, or without the object around each. Raises InvalidRequestError, with the field's name."""
    if not isinstance(tools, (list, tuple)):
        raise InvalidRequestError("tools must be a list of objects", "tools")
    if len(tools) > _MAX_TOOLS:
        raise InvalidRequestError(f"tools may hold at most {_MAX_TOOLS}, got {len(tools)}", "tools")
    checked: dict[str, Tool] = {}
    for index, given in enumerate(tools):
        tool = _checked_tool(given, f"tools[{index}]")
        if tool.name in checked:
            raise InvalidRequestError(f"tools[{index}]: {tool.name!r} stands there twice", "tools")
        checked[tool.name] = tool
    return tuple(checked.values())


def _checked_tool(given: Any, where: str) -> Tool:
    kind = given.get("type", "function") if isinstance(given, Mapping) else None
    if kind != "function":
        raise InvalidRequestError(f"{where} must be an object of type 'function', not {kind!r}", "tools")
    function = given.get("function", given)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{where}: a function needs a name of at most 128 letters, digits and _ - . : /, not {name!r}", "tools"
        )
    parameters = function.get("parameters")
    if not isinstance(parameters, Mapping | None):
        raise InvalidRequestError(f"{where}: parameters must be a JSON schema", "tools")
    return Tool(name, _NO_PARAMETERS if parameters is None else parameters, function.get("strict") is True)
