"""ChatTemplate: messages -> prompt text, by the Jinja template that comes with a model."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.text.template.call_id import LONG, SHORT, with_short_ids
from lullm.text.template.failure import Broken, Failed, Forbidden, OutOfBounds, Rejected, TemplateFailure
from lullm.text.template.open_end import OPTION as OPEN_END
from lullm.text.template.process import ProcessBounds
from lullm.text.template.renderer import Renderer
from lullm.text.template.turn_order import TurnOrder, as_parts, trial_turns

_PARAM = "messages"
_TRIAL = [{"role": "user", "content": "Hello!"}]
PICTURE = {"type": "image"}
"""The part of a content in place of a picture."""
VIDEO = {"type": "video"}
"""That of a video."""
SOUND = {"type": "audio", "audio": ""}
"""That of a sound. Some templates look for the key, others at the type."""

Message = Mapping[str, Any]


class ChatTemplate:
    """A model's chat template. Rendering is thread-safe and does not change its arguments.

    Args:
        source: the template, or several by name; then calls with tools use 'tool_use', others 'default'.
        special_tokens: name -> text, visible to the template (`eos_token`, ...).
        bounds: of one rendering in the other process.

    Attributes:
        shows_pictures, shows_videos, shows_sounds: it prints something in place of the parts `PICTURE`, `VIDEO` and
            `SOUND` of a content.

    Raises:
        ModelLoadError: not a valid template, or several and no 'default'.
    """

    def __init__(
        self, source: str | Mapping[str, str], special_tokens: Mapping[str, str], bounds: ProcessBounds | None = None
    ):
        self.sources = {"default": source} if isinstance(source, str) else dict(source)
        self._special_tokens = dict(special_tokens)
        self._takes_argument_text = False
        self._takes_short_ids = False
        self._takes_parts = False
        self._words: dict[str, str] = {}
        self._between = ""
        self.shows_pictures = self.shows_videos = self.shows_sounds = False
        self._orders: dict[str, TurnOrder] = {}
        if "default" not in self.sources:
            raise ModelLoadError(f"no chat template is named 'default', only {', '.join(self.sources) or 'none'}")
        try:
            self._renderer = Renderer(self.sources, bounds)
        except (Broken, OutOfBounds) as error:
            raise ModelLoadError(f"the chat template is not valid: {error}") from None

    def render(
        self,
        messages: Sequence[Message],
        /,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt text, special tokens included: encode it with `add_special_tokens=False`.

        A message has `role` and `content`: a string, or OpenAI's list of text parts, which are joined with newlines,
        unless `PICTURE`s, `VIDEO`s or `SOUND`s are among them. A template that only takes lists gets lists.
        Content may be missing beside `tool_calls`. Their `arguments` may be JSON text; the template gets them parsed.
        The template sees `kwargs` unchanged (`enable_thinking=False`).

        Blocks for at most some milliseconds in this process, and for `ProcessBounds.wall_s` in another.

        Raises:
            InvalidRequestError: malformed messages or tools; or the template refused them, failed with them, or takes
                too much time or memory with them.
            ModelLoadError: the template did something that the sandbox forbids.
        """
        options = {"add_generation_prompt": add_generation_prompt, "tools": tools, **kwargs}
        return self.render_variables(self.variables(messages, options))

    def variables(self, messages: Sequence[Message], options: Mapping[str, Any]) -> dict[str, Any]:
        """The template's variables in `render(messages, **options)`. Raises InvalidRequestError as `render` does."""
        tools = options.get("tools")
        if "messages" in options:
            raise InvalidRequestError("messages cannot be a template argument too", _PARAM)
        if tools is not None and not (_is_list(tools) and all(isinstance(tool, Mapping) for tool in tools)):
            raise InvalidRequestError("tools must be a list of objects", "tools")
        if options.get("documents") and not any("documents" in source for source in self.sources.values()):
            raise InvalidRequestError("the chat template of this model takes no documents", "documents")
        checked = _checked_messages(messages, self._takes_argument_text)
        if self._takes_short_ids:
            checked = [with_short_ids(message) for message in checked]
        order = self._orders.get(self._name(tools), TurnOrder())
        return {
            "add_generation_prompt": not options.get(OPEN_END),
            **options,
            "messages": order.arranged(checked),
            "tools": list(tools) if tools else None,
        }

    def render_variables(self, variables: Mapping[str, Any], may_block: bool = True) -> str:
        """The text for `variables`. Raises as `render` does; WouldBlock: it takes longer, without `may_block`."""
        try:
            variables = {**self._special_tokens, **variables, "messages": self._sent(variables["messages"])}
            return self._renderer.render(self._name(variables.get("tools")), variables, may_block)
        except Forbidden as error:
            raise ModelLoadError(f"the chat template does what its sandbox forbids: {error}") from None
        except Rejected as error:
            raise InvalidRequestError(f"the chat template rejected the messages: {error}", _PARAM) from None
        except OutOfBounds as error:
            raise InvalidRequestError(
                f"the chat template cannot be used with these messages: {error}", _PARAM
            ) from None
        except Failed as error:
            raise InvalidRequestError(f"the chat template failed on these messages: {error}", _PARAM) from None

    def try_out(self) -> None:
        """Render some short conversations with each template, to learn which messages it accepts.

        Raises ModelLoadError: one message takes more than the bounds allow.
        """
        self._takes_parts = self._prints(["Umbra 0."], False) is None and self._prints(["Umbra 0."], True) is not None
        alone = self._prints(["Umbra 0."], True)
        self.shows_pictures = self._prints([PICTURE, "Umbra 0."], True) not in (None, alone)
        self.shows_videos = self._prints([VIDEO, "Umbra 0."], True) not in (None, alone)
        self.shows_sounds = self._prints([SOUND, "Umbra 0."], True) not in (None, alone)
        for name in self.sources:
            try:
                self._render_trial(name, _TRIAL)
            except (OutOfBounds, Forbidden) as error:
                raise ModelLoadError(f"the chat template {name!r} cannot render one message: {error}") from None
            except (Rejected, Failed):
                continue  # it may need tools, or a system message
        self._takes_argument_text = self._fails_with({}) and not self._fails_with("{}")
        shows = functools.partial(self._shows, "default")
        self._takes_short_ids = not shows(trial_turns("ucr", LONG)) and shows(trial_turns("ucr", SHORT))
        self._orders = {name: TurnOrder.learned(functools.partial(self._shows, name)) for name in self.sources}

    def spell(self, place: Mapping[str, str], word: str, between: str) -> None:
        """Put the word into a message's text where a `place`, PICTURE or SOUND, is, and `between` beside it, if the
        template itself has no place for it: it may take strings only. A call may come again with the same word.
        """
        shows = "shows_pictures" if place == PICTURE else "shows_sounds"
        if not getattr(self, shows):
            self._words[place["type"]] = word
            self._between = between
            setattr(self, shows, True)

    def _render_trial(self, name: str, messages: Sequence[Message]) -> str:
        sent = self._sent(messages)
        variables = {**self._special_tokens, "messages": sent, "add_generation_prompt": False, "tools": None}
        return self._renderer.render(name, variables)

    def _sent(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Messages in the form that the template takes."""
        if self._words:
            messages = [_spelled(message, self._words, self._between) for message in messages]
        if not self._takes_parts:
            return messages
        return [{**message, "content": as_parts(message["content"])} for message in messages]

    def _prints(self, parts: Sequence[Any], as_list: bool) -> str | None:
        """The text of a message with these parts; None: it lacks theirs, or shows a list as Python writes it."""
        content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
        message = {"role": "user", "content": content if as_list else "".join(parts)}
        try:
            text = self._render_trial("default", [message])
        except TemplateFailure:
            return None
        return text if all(part in text for part in parts if isinstance(part, str)) and "'type'" not in text else None

    def _fails_with(self, arguments: Any) -> bool:
        """Whether the template fails with such arguments. DeepSeek's templates add them to a text."""
        if not any("arguments" in source for source in self.sources.values()):
            return False
        call = {"id": SHORT, "type": "function", "function": {"name": "f", "arguments": arguments}}
        try:
            self._render_trial("default", [*_TRIAL, {"role": "assistant", "content": "", "tool_calls": [call]}])
        except Failed:
            return True
        except (Rejected, OutOfBounds, Forbidden):
            return False
        return False

    def _shows(self, name: str, messages: Sequence[Message]) -> bool:
        """Whether a template prints the texts of the messages."""
        try:
            text = self._render_trial(name, _checked_messages(messages, self._takes_argument_text))
        except TemplateFailure:
            return False
        return all(message["content"] in text for message in messages)

    def _name(self, tools: Any) -> str:
        return "tool_use" if tools and "tool_use" in self.sources else "default"

    @property
    def has_process(self) -> bool:
        """Whether a process has been started because a rendering was not quick."""
        return self._renderer.has_process

    def close(self) -> None:
        """End the rendering process. Idempotent."""
        self._renderer.close()


def _spelled(message: Message, words: Mapping[str, str], between: str) -> Message:
    """The message as a string, with the word for each place of `words`, if nothing but texts is beside them."""
    content = message["content"]
    if not _is_list(content) or not all("text" in part or part.get("type") in words for part in content):
        return message
    parts = (part["text"] if "text" in part else words[part["type"]] for part in content)
    return {**message, "content": between.join(parts)}


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _checked_messages(messages: Sequence[Message], as_text: bool) -> list[dict[str, Any]]:
    if not _is_list(messages) or not messages:
        raise InvalidRequestError("messages must be a list with at least one message", _PARAM)
    return [_checked_message(message, f"messages[{index}]", as_text) for index, message in enumerate(messages)]


def _checked_message(message: Message, where: str, as_text: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} must be an object with role and content", _PARAM)
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise InvalidRequestError(f"{where}: role must be a string such as 'user'", _PARAM)
    checked = dict(message)
    tool_calls = message.get("tool_calls")
    if tool_calls:
        checked["tool_calls"] = _checked_tool_calls(tool_calls, f"{where}.tool_calls", as_text)
    content = message.get("content")
    if content is None and tool_calls:
        checked["content"] = ""
    else:
        checked["content"] = _flat_content(content, f"{where}.content")
    return checked


def _flat_content(content: Any, where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not _is_list(content):
        raise InvalidRequestError(f"{where} must be a string or a list of text parts", _PARAM)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind is None:
            raise InvalidRequestError(f"{where}[{index}] must be an object with a type", _PARAM)
        if part in (PICTURE, VIDEO, SOUND):
            continue
        if kind != "text":
            raise InvalidRequestError(
                f"{where}[{index}]: parts of type {kind!r} are not supported, only 'text'", _PARAM
            )
        if not isinstance(part.get("text"), str):
            raise InvalidRequestError(f"{where}[{index}]: text must be a string", _PARAM)
        texts.append(part["text"])
    if len(texts) < len(content):
        return [dict(part) for part in content]
    return "\n".join(texts)


def _checked_tool_calls(tool_calls: Any, where: str, as_text: bool) -> list[dict[str, Any]]:
    """The tool calls with parsed arguments: clients send JSON text, but most templates print `arguments | tojson`.

    `as_text`: the template expects text.
    """
    if not _is_list(tool_calls) or not all(isinstance(call, Mapping) for call in tool_calls):
        raise InvalidRequestError(f"{where} must be a list of objects", _PARAM)
    checked = []
    for index, call in enumerate(tool_calls):
        function = call.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
            try:
                arguments = json.loads(function["arguments"] or "{}")
            except (ValueError, RecursionError):
                raise InvalidRequestError(f"{where}[{index}].function.arguments is not JSON", _PARAM) from None
            function = {**function, "arguments": arguments}
            call = {**call, "function": function}
        if as_text and isinstance(function, Mapping) and isinstance(function.get("arguments"), Mapping):
            try:
                text = json.dumps(function["arguments"], ensure_ascii=False)
            except (TypeError, ValueError, RecursionError):
                raise InvalidRequestError(f"{where}[{index}].function.arguments is not JSON", _PARAM) from None
            call = {**call, "function": {**function, "arguments": text}}
        checked.append(dict(call))
    return checked
