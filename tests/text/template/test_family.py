"""Templates in the families' styles render as plain Jinja does, and quickly enough to need no other process."""

import json
from datetime import datetime
from typing import Any

import pytest
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from kit.template import styles

from lullm.errors import InvalidRequestError
from lullm.text.chat_template import ChatTemplate
from lullm.text.template.sandbox import _GenerationTag
from lullm.weights.folder import DEMO_FOLDER

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich <&>"}}}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'The "weather"',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
        },
    },
}
TURNS = [
    {"role": "user", "content": "  What is 1 + 1?\r\n"},
    {"role": "assistant", "content": "<think>\nadd\n</think>\n\n2"},
    {"role": "user", "content": "日本 <|im_end|> {{ 7 * 7 }} & <b>"},
]
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one": {"messages": TURNS[:1]},
    "turns": {"messages": TURNS},
    "system": {"messages": [{"role": "system", "content": " Be kind. "}, *TURNS]},
    "no prompt": {"messages": TURNS[:2], "add_generation_prompt": False},
    "tools": {"messages": TURNS, "tools": [TOOL, TOOL]},
    "calls": {
        "messages": [
            TURNS[0],
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "sunny", "tool_call_id": "abcdefghi"},
        ],
        "tools": [TOOL],
    },
    "no thinking": {"messages": TURNS, "enable_thinking": False},
}


def plain(source: str, conversation: dict[str, Any]) -> str:
    """What Jinja makes of it, with transformers' settings and filters."""
    extensions: list[str | type[Extension]] = [_GenerationTag, "jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)

    def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": refuse, "strftime_now": datetime.now().strftime}
    return environment.from_string(source).render(
        **TOKENS, **{"tools": None, "add_generation_prompt": True} | conversation
    )


def both(source: str, conversation: dict[str, Any]) -> tuple[str, str]:
    template = ChatTemplate(source, TOKENS)
    template.try_out()
    try:
        text = template.render(conversation["messages"], **{k: v for k, v in conversation.items() if k != "messages"})
    finally:
        template.close()
    assert not template.has_process
    return text, plain(source, conversation)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("family", styles.ALL)
def test_equal_to_plain_jinja(family, conversation):
    text, expected = both(styles.ALL[family], CONVERSATIONS[conversation])
    assert text == expected


@pytest.mark.parametrize("family", styles.ALL)
def test_a_long_conversation_needs_no_process(family):
    roles = ["user", "assistant"] * 300
    messages = [{"role": role, "content": str(number) * 100} for number, role in enumerate(roles)]
    text, expected = both(styles.ALL[family], {"messages": messages, "tools": [TOOL] * 20})
    assert text == expected


def test_the_demo_model():
    source = json.loads((DEMO_FOLDER / "tokenizer_config.json").read_text())["chat_template"]
    for conversation in CONVERSATIONS.values():
        text, expected = both(source, conversation)
        assert text == expected


def test_a_refusal_is_the_same():
    with pytest.raises(InvalidRequestError, match="rejected the messages: roles must alternate"):
        both(styles.MISTRAL_TOOLS, {"messages": [TURNS[1], TURNS[0]]})
