"""The grammar of a reply, from the form that its reader reads."""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from lullm.text.guided.grammar import closed_schema
from lullm.text.reply.grammar.arguments import arguments_of
from lullm.text.reply.grammar.writer import ANY, BLANKS, GrammarWriter
from lullm.types.reply.form import CallForm, ObjectBody
from lullm.types.reply.rules import ReplyRules, Tool

_FORM = "@form"


def _is_guided(rules: ReplyRules) -> bool:
    """Whether the calls of a reply need a grammar: one is required, only some tools may be called, or the arguments
    must fit their schema.
    """
    calls = rules.calls
    return calls.choice == "required" or calls.names is not None or any(tool.is_strict for tool in rules.tools)


def reply_grammar(
    rules: ReplyRules, added: Mapping[str, int], end_token_ids: Collection[int], has_form: bool
) -> str | None:
    """Lark of a whole reply: thoughts, then text or calls. None: it may be any text.

    Args:
        added, end_token_ids: see `GrammarWriter`.
        has_form: the text has a grammar of its own, to which the result refers as `@form`.

    Raises:
        InvalidRequestError: a schema is nested too deep.
    """
    if not _is_guided(rules) and not (has_form and (rules.tools or rules.thinking)):
        return None
    writer, header = GrammarWriter(added, end_token_ids), rules.form.header
    before_text = writer.literal(header.text_open) if header else ""
    ways = []
    if has_form:
        ways.append(f"{before_text} {_FORM}")
    if rules.calls.choice == "required" or (has_form and rules.tools):
        ways.append(_calls(writer, rules))
    elif rules.tools:
        ways += _text_with_calls(writer, rules, before_text)
    thoughts = _thoughts(writer, rules)
    return "\n".join([f"start: {thoughts} body", f"body: {' | '.join(ways)}", *writer.lines, ""])


def _thoughts(writer: GrammarWriter, rules: ReplyRules) -> str:
    """Rules for thoughts before the answer."""
    form, thinking, header = rules.form.thinking, rules.thinking, rules.form.header
    if form is None or thinking is None or not (thinking.begins_inside or thinking.may_begin):
        return ""
    behind = writer.literal(header.next_open) if header else f"/({BLANKS})?/"
    rest = writer.rule(f"{writer.until(form.close.strip())} {behind}")
    if thinking.begins_inside:
        return rest
    return writer.rule(f"{writer.literal(form.open.strip())} {rest}") + "?"


def _calls(writer: GrammarWriter, rules: ReplyRules) -> str:
    """One call, or several."""
    form = _call_form(rules)
    one = _one_call(writer, form, rules)
    more = f"({writer.literal(form.separator)} {one})*" if rules.calls.is_parallel else ""
    section_open = "" if form.is_bare and isinstance(form.body, ObjectBody) else form.section_open
    return writer.rule(f"{writer.literal(section_open)} {one} {more} {writer.literal(form.section_close)}")


def _text_with_calls(writer: GrammarWriter, rules: ReplyRules, before_text: str) -> list[str]:
    """Any text, in which text that begins like a call must be one."""
    form = _call_form(rules)
    mark = (form.section_open or form.open).split()[:1]
    if form.is_bare or not mark:
        return [ANY, _calls(writer, rules)]
    name = "section_open" if form.section_open else "open"
    rest = getattr(form, name).partition(mark[0])[2]
    calls = _calls(writer, replace(rules, form=replace(rules.form, calls=replace(form, **{name: rest}))))
    if rules.form.header:  # each message has a header: text, or a call
        return [f"{before_text} {ANY}", _calls(writer, rules)]
    often = "*" if rules.calls.is_parallel and not form.section_open else "?"
    return [f"({writer.after_text(mark[0])} {calls}){often} {ANY}"]


def _call_form(rules: ReplyRules) -> CallForm:
    form = rules.form.calls
    assert form is not None, "who may call tools has a form of calls"
    return form


def _one_call(writer: GrammarWriter, form: CallForm, rules: ReplyRules) -> str:
    is_free = rules.calls.choice == "auto" and isinstance(form.body, ObjectBody)
    return writer.rule(" | ".join(_call_of(writer, form, tool, is_free and not tool.is_strict) for tool in rules.tools))


def _call_of(writer: GrammarWriter, form: CallForm, tool: Tool, is_free: bool) -> str:
    schema: dict[str, Any] = (
        {"type": "object"} if is_free else {"type": "object", **closed_schema(dict(tool.parameters))}
    )
    if isinstance(form.body, ObjectBody):
        name_key, arguments_key = json.dumps(form.body.name_key), json.dumps(form.body.arguments_key)
        opening = f"{form.open}{{{name_key}: {json.dumps(tool.name)}, {arguments_key}: "
        return f"{writer.literal(opening)} {writer.json(schema)} {writer.literal('}' + form.close)}"
    opening = form.open + tool.name + form.body.name_close
    return f"{writer.literal(opening)} {arguments_of(writer, form.body, schema)} {writer.literal(form.close)}"
