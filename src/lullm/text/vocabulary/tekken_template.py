"""The chat templates of Mistral's own releases, which have a tekken.json and no template.

Their form is a version of mistral-common (https://github.com/mistralai/mistral-common), which tekken.json names:

- v3: system texts stand in the last user's turn, calls are a list in JSON, a result is an object in JSON.
- v7: system texts stand between tokens, where they are; a result is text behind the id of its call.
- v11: a call is its name, its id and its arguments.
- v13: tools stand before the first user's turn; calls and results have no ids.
- v15: settings stand beside the tools.

Tests compare prompts with those of mistral-common, token by token. Runs of messages of one role are one there; here
they are refused, so that `TurnOrder` joins them.
"""

from collections.abc import Collection, Mapping
from typing import Any

from lullm.errors import ModelLoadError

_NUMBERS = (3, 7, 11, 13, 15)
_WORDS = {"image": ("[IMG]",), "audio": ("[BEGIN_AUDIO]", "[AUDIO]")}
_SHOWN = """\
{%- macro shown(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- set texts = content | selectattr('type', 'equalto', 'text') | list -%}
        {%- set ends_with_picture = texts and texts == content[:-1] and content[-1].type == 'image' -%}
        {{- '[IMG]' if ends_with_picture -}}
        {%- for part in (texts if ends_with_picture else content) -%}
            {{- part.text if part.type == 'text' else WORDS[part.type] -}}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
"""
"""A picture behind all texts is put before them."""
_ORDER = """\
{%- set turns = namespace(first=none, last=none, before='') -%}
{%- for message in messages -%}
    {%- if message.role == turns.before and message.role in ('user', 'assistant') -%}
        {{- raise_exception('the roles user and assistant must alternate') -}}
    {%- endif -%}
    {%- if message.role == 'user' -%}
        {%- set turns.first = loop.index0 if turns.first is none else turns.first -%}
        {%- set turns.last = loop.index0 -%}
    {%- endif -%}
    {%- set turns.before = message.role -%}
{%- endfor -%}
"""
_TOOLS = """\
        {%- if tools and loop.index0 == turns.POSITION -%}
            {{- '[AVAILABLE_TOOLS][' -}}
            {%- for tool in tools -%}
                {%- set function = {'name': tool.function.name, 'description': tool.function.description or '',
                                    'parameters': tool.function.parameters or {}} -%}
                {{- {'type': 'function', 'function': function} | tojson -}}
                {{- ', ' if not loop.last -}}
            {%- endfor -%}
            {{- '][/AVAILABLE_TOOLS]' -}}
        {%- endif -%}
"""
_SETTINGS = """\
        {%- if loop.index0 == turns.POSITION -%}
            {%- set effort = 'none' if enable_thinking is false else reasoning_effort or DEFAULT -%}
            {%- if effort not in VALUES -%}
                {{- raise_exception('reasoning_effort must be one of ' ~ VALUES | join(', ')) -}}
            {%- endif -%}
            {{- '[MODEL_SETTINGS]' ~ {'reasoning_effort': effort} | tojson ~ '[/MODEL_SETTINGS]' -}}
        {%- endif -%}
"""
_CALLS = {
    "list": """\
        {%- if message.tool_calls -%}
            {{- '[TOOL_CALLS][' -}}
            {%- for call in message.tool_calls -%}
                {%- set written = {'name': call.function.name, 'arguments': call.function.arguments} -%}
                {%- set named = {'id': call.id} if call.id else {} -%}
                {{- dict(written, **named) | tojson -}}
                {{- ', ' if not loop.last -}}
            {%- endfor -%}
            {{- ']' -}}
        {%- endif -%}
""",
    "with ids": """\
        {%- for call in message.tool_calls or [] -%}
            {{- '[TOOL_CALLS]' ~ call.function.name -}}
            {{- '[CALL_ID]' ~ call.id if call.id -}}
            {{- '[ARGS]' ~ call.function.arguments | tojson -}}
        {%- endfor -%}
""",
    "without ids": """\
        {%- for call in message.tool_calls or [] -%}
            {{- '[TOOL_CALLS]' ~ call.function.name ~ '[ARGS]' ~ call.function.arguments | tojson -}}
        {%- endfor -%}
""",
}
_RESULTS = {
    "object": """\
        {%- set is_json = message.content[:1] in ('{', '[') -%}
        {{- '[TOOL_RESULTS]{"content": ' ~ (message.content if is_json else message.content | tojson) -}}
        {{- ', "call_id": ' ~ message.tool_call_id | tojson ~ '}[/TOOL_RESULTS]' -}}
""",
    "with ids": """\
        {{- '[TOOL_RESULTS]' ~ message.tool_call_id ~ '[TOOL_CONTENT]' ~ message.content ~ '[/TOOL_RESULTS]' -}}
""",
    "without ids": """\
        {{- '[TOOL_RESULTS]' ~ message.content ~ '[/TOOL_RESULTS]' -}}
""",
}
_SYSTEM_TURN = """\
    {%- elif message.role == 'system' -%}
        {{- '[SYSTEM_PROMPT]' ~ message.content ~ '[/SYSTEM_PROMPT]' -}}
"""
_SYSTEM_IN_TURN = """\
            {%- set texts = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | list -%}
            {{- texts | join('\\n\\n') ~ '\\n\\n' if texts and loop.index0 == turns.last -}}
"""
_THOUGHTS = """\
        {{- '[THINK]' ~ message.reasoning_content ~ '[/THINK]' if message.reasoning_content -}}
"""


def tekken_template(data: Mapping[str, Any], special: Collection[str]) -> str | None:
    """The template for a tekken.json; None: it names no version that is known here.

    Args:
        special: its special tokens.

    Raises:
        ModelLoadError: the settings of the model are in another form.
    """
    special_tokens = frozenset(special)
    version = str(data["config"].get("version"))
    number = int(version[1:4]) if version[1:].isdecimal() else 0  # thousands of digits cannot be read
    if number not in _NUMBERS:
        return None
    position = "last" if number < 13 else "first"
    form = "without ids" if number >= 13 else "with ids"
    calls = _CALLS["list" if number < 11 else form]
    results = _RESULTS["object" if number < 7 else form]
    user = _TOOLS + (_settings(data) if number >= 15 else "")
    in_turn = _SYSTEM_IN_TURN if number < 7 else ""
    words = {kind: "".join(tokens) for kind, tokens in _WORDS.items() if special_tokens.issuperset(tokens)}
    thoughts = _THOUGHTS if {"[THINK]", "[/THINK]"} <= special_tokens else ""
    return (
        f"{_SHOWN.replace('WORDS', repr(words))}{_ORDER}"
        "{{- bos_token -}}\n"
        "{%- for message in messages -%}\n"
        "    {%- if message.role == 'user' -%}\n"
        f"{user.replace('POSITION', position)}"
        "        {{- '[INST]' -}}\n"
        f"{in_turn}"
        "        {{- shown(message.content) ~ '[/INST]' -}}\n"
        "    {%- elif message.role == 'assistant' -%}\n"
        f"{thoughts}"
        "        {{- shown(message.content or '').rstrip(' ') -}}\n"
        f"{calls}"
        "        {{- eos_token -}}\n"
        "    {%- elif message.role == 'tool' -%}\n"
        f"{results}"
        f"{_SYSTEM_TURN if number >= 7 else ''}"
        f"    {{%- elif message.role != 'system' -%}}\n"
        "        {{- raise_exception('a role must be system, user, assistant or tool') -}}\n"
        "    {%- endif -%}\n"
        "{%- endfor -%}\n"
    )


def _settings(data: Mapping[str, Any]) -> str:
    """The part of a template with the settings of a model."""
    fields = data.get("model_settings_builder") or {}
    if not isinstance(fields, dict) or not all(isinstance(field, dict) for field in fields.values() if field):
        raise ModelLoadError("model_settings_builder must be an object of objects")
    effort = fields.get("reasoning_effort")
    others = {name: field for name, field in fields.items() if field and field is not effort}
    if needed := [name for name, field in others.items() if not field.get("accepts_none")]:
        raise ModelLoadError(f"model_settings_builder needs {', '.join(needed)}, which is not implemented")
    if not effort:
        return ""
    values, default = effort.get("values"), effort.get("default")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in [*values, default]):
        raise ModelLoadError("model_settings_builder: reasoning_effort must have values and a default")
    return _SETTINGS.replace("DEFAULT", repr(default)).replace("VALUES", repr(values))
