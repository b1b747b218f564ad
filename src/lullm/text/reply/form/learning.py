"""The form of calls and thoughts, learned from the chat template's own output for known ones.

The template is rendered with one call and with two, and with a thought; the texts between known words are the marks. A
learned form counts only if it reads that output back.
"""

import json
import os
from typing import Any

from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.text.chat_template import ChatTemplate
from lullm.text.reply.form_reader import FormReader
from lullm.text.reply.whole import joined
from lullm.types.reply.form import CallForm, KeywordValues, NamedBody, ObjectBody, ReplyForm, TaggedValues, ThinkingForm
from lullm.types.reply.rules import ReplyRules, ThinkingTokens, Tool

_ASK = [{"role": "user", "content": "Umbra?"}]
_TEXT, _THOUGHT = "Quux ends.", "Jumbled vex."
_ID = "abcdefgh"  # contains a digit, and has the length that Mistral's templates require
_ONE = ("zeta_fn", {"kappa": "wolf pack", "omega": "jazz quiz"})
_OTHER = ("gyre_fn", {"kappa": "mimsy", "omega": "borogove"})
_PARAMETERS = {"type": "object", "properties": {"kappa": {"type": "string"}, "omega": {"type": "string"}}}
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "It is.", "parameters": _PARAMETERS}}
    for name, _ in (_ONE, _OTHER)
]


def learned_calls(template: ChatTemplate) -> CallForm | None:
    """The form of the calls that the template prints; None: it prints none, or none that can be read."""
    text = _rendered(template, _answer(_TEXT))
    one, two = _rendered(template, _answer("", _ONE)), _rendered(template, _answer("", _ONE, _OTHER))
    if text is None or one is None:
        return None
    said = _between(text, one)
    found = _one_call(said)
    if found is None:
        return None
    opening, body, closing = found
    form = CallForm(opening, body, closing)
    if two is not None:
        said_twice = _between(text, two)
        several = _several(form, said, said_twice)
        if several is not None and _read(several, said_twice) == [_ONE, _OTHER]:
            form = several
    return form if form.open.strip() + form.section_open.strip() and _read(form, said) == [_ONE] else None


def learned_thinking(template: ChatTemplate) -> ThinkingForm | None:
    """The marks that the template prints around a thought of its last message; None: it prints none."""
    thoughtful = _rendered(template, _answer(_TEXT) | {"reasoning_content": _THOUGHT, "reasoning": _THOUGHT})
    plain, prompt = _rendered(template, _answer(_TEXT)), _rendered(template, None)
    if thoughtful is None or plain is None or prompt is None or _THOUGHT not in thoughtful:
        return None
    before, _, behind = thoughtful.partition(_THOUGHT)
    closing, found, _ = behind.partition(_TEXT)
    opening = before[len(os.path.commonprefix([before, plain, prompt])) :]
    form = ThinkingForm(opening, closing)
    if not (found and opening.strip() and closing.strip()):
        return None
    reader = FormReader(ReplyRules(ReplyForm(form), thinking=ThinkingTokens((0,), (1,), False)))
    reply = joined(reader.feed(f"{opening}{_THOUGHT}{closing}{_TEXT}", []) + reader.finish())
    return form if (reply.thinking, reply.text) == (_THOUGHT, _TEXT) else None


def _answer(text: str, *calls: tuple[str, dict[str, str]]) -> dict[str, Any]:
    """A message of the assistant."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": f"{_ID}{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ]
    return message


def _rendered(template: ChatTemplate, message: dict[str, Any] | None) -> str | None:
    """The conversation with the message, or the prompt for it; None: the template refuses it."""
    messages = _ASK if message is None else [*_ASK, message]
    try:
        return template.render(messages, add_generation_prompt=message is None, tools=_TOOLS)
    except (InvalidRequestError, ModelLoadError):
        return None


def _between(text: str, other: str) -> str:
    """The text of `other` where `text` differs."""
    start = len(os.path.commonprefix([text, other]))
    behind = len(os.path.commonprefix([text[start:][::-1], other[start:][::-1]]))
    return other[start : len(other) - behind]


def _one_call(said: str) -> tuple[str, ObjectBody | NamedBody, str] | None:
    """(text before a call's body, the body, text after it)."""
    name, arguments = _ONE
    place = said.find(name)
    if place < 0:
        return None
    decoder = json.JSONDecoder()
    for start in (n for n, char in enumerate(said[:place]) if char == "{"):
        try:
            value, end = decoder.raw_decode(said, start)
        except ValueError:
            continue
        keys = {"name": name, "arguments": arguments}
        found = {word: [key for key, one in value.items() if one == wanted] for word, wanted in keys.items()}
        if all(len(each) == 1 for each in found.values()):
            return said[:start], ObjectBody(found["name"][0], found["arguments"][0]), said[end:]
    behind = place + len(name)
    start = said.find("{", behind)
    try:
        value, end = decoder.raw_decode(said, start) if start >= 0 else (None, 0)
    except ValueError:
        value, end = None, 0
    if value == arguments:
        return said[:place], NamedBody(said[behind:start]), said[end:]
    return _with_values(said, place, behind)


def _with_values(said: str, place: int, behind: int) -> tuple[str, NamedBody, str] | None:
    """The form of a call whose arguments are written one by one."""
    gaps, at = [], behind
    for word in (word for item in _ONE[1].items() for word in item):
        found = said.find(word, at)
        if found < 0:
            return None
        gaps.append(said[at:found])
        at = found + len(word)
    before, equals, between, again = gaps
    rest = said[at:]
    if equals != again:
        return None
    opening = os.path.commonprefix([before[::-1], between[::-1]])[::-1]
    cut = _boundary(between, len(between) - len(opening), len(os.path.commonprefix([between, rest])))
    closing, opening = between[:cut], between[cut:]
    name_close = before[: len(before) - len(opening)]
    if opening.strip() and rest.startswith(closing):
        values: TaggedValues | KeywordValues = TaggedValues(opening, equals, closing)
        return said[:place], NamedBody(name_close, values), rest[len(closing) :]
    sign = equals.strip()[:1]
    quote = equals.strip()[1:].strip()
    if not quote or not rest.startswith(quote):
        return None
    values = KeywordValues(sign, "" if quote in ("'", '"') else quote)
    return said[:place], NamedBody(before, values), rest[len(quote) :]


def _boundary(text: str, low: int, high: int) -> int:
    """Where from `low` to `high` one mark ends and the next begins: after a line, else after a bracket."""
    common = text[low:high]
    places = (common.rfind("\n"), max(map(common.rfind, ">])}|")))
    return low + next((place + 1 for place in places if place >= 0), 0)


def _several(form: CallForm, said: str, twice: str) -> CallForm | None:
    """The form with its marks divided between each call and all of them, by the text between two calls."""
    body = said[len(form.open) : len(said) - len(form.close)]
    start = len(form.open) + len(body)
    if not twice.startswith(form.open + body):
        return None
    second = body
    words = [_ONE[0], *_ONE[1].values(), _ID + "0"], [_OTHER[0], *_OTHER[1].values(), _ID + "1"]
    for word, other in zip(*words, strict=True):
        second = second.replace(word, other)
    end = twice.find(second, start)
    if end < 0:
        return None
    middle = twice[start:end]
    low = len(middle) - len(os.path.commonprefix([form.open[::-1], middle[::-1]]))
    high = len(os.path.commonprefix([form.close, middle]))
    if low <= high:
        low = high = _boundary(middle, low, high)
    opening, closing = middle[low:], middle[:high]
    return CallForm(
        opening,
        form.body,
        closing,
        section_open=form.open[: len(form.open) - len(opening)],
        section_close=form.close[len(closing) :],
        separator=middle[high:low],
    )


def _read(form: CallForm, said: str) -> list[tuple[str, Any]]:
    """The calls in a text."""
    tools = tuple(Tool(name, _PARAMETERS) for name, _ in (_ONE, _OTHER))
    reader = FormReader(ReplyRules(ReplyForm(None, form), tools))
    try:
        reply = joined(reader.feed(said, []) + reader.finish())
        return [(call.name, json.loads(call.arguments)) for call in reply.calls]
    except ValueError:
        return []
