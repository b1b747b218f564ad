"""What templates take, and conversations as they take them."""

import pytest
from kit.template.styles import ALL, CHATML, GEMMA, LLAMA3_TOOLS, MISTRAL_TOOLS, QWEN_TOOLS, SYSTEM_FIRST, TURN_BY_TURN

from lullm.errors import InvalidRequestError
from lullm.text.chat_template import ChatTemplate
from lullm.text.template.turn_order import TurnOrder

NAMES = {"s": "system", "u": "user", "a": "assistant", "r": "tool"}
CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def turns(roles):
    """'su' -> a message of the system, one of the user; each says its letter and number."""
    return [{"role": NAMES[role], "content": f"{role}{n}"} for n, role in enumerate(roles)]


def prompt(source, messages):
    template = ChatTemplate(source, {"bos_token": "", "eos_token": ""})
    template.try_out()
    return template.render(messages, add_generation_prompt=False)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, TurnOrder()),
        (QWEN_TOOLS, TurnOrder()),
        (LLAMA3_TOOLS, TurnOrder()),
        (SYSTEM_FIRST, TurnOrder(more_systems=False, late_system=False)),
        (TURN_BY_TURN, TurnOrder(False, False, False, neighbours=False)),
        (MISTRAL_TOOLS, TurnOrder(True, False, False, neighbours=False, behind_result=False)),
        (GEMMA, TurnOrder()),
        ("{{ messages[-1].content }}", TurnOrder()),
        ("{{ raise_exception('no') }}", TurnOrder()),
    ],
)
def test_learned(source, expected):
    template = ChatTemplate(source, {"bos_token": "", "eos_token": ""})
    assert TurnOrder.learned(lambda messages: template._shows("default", messages)) == expected


@pytest.mark.parametrize(
    ("source", "roles", "expected"),
    [
        (SYSTEM_FIRST, "ssu", "<|im_start|>system\ns0\n\ns1<|im_end|>\n<|im_start|>user\nu2<|im_end|>\n"),
        (SYSTEM_FIRST, "us", "<|im_start|>user\nu0<|im_end|>\n<|im_start|>user\ns1<|im_end|>\n"),
        (TURN_BY_TURN, "ssu", "<user>s0\n\ns1\n\nu2"),
        (TURN_BY_TURN, "uuaasu", "<user>u0\n\nu1<assistant>a2\n\na3<user>s4\n\nu5"),
    ],
)
def test_all_is_said_in_its_place(source, roles, expected):
    assert prompt(source, turns(roles)) == expected


def test_a_users_words_behind_a_result():
    """Agents put their reminders there; where those cannot be a turn they are part of the result."""
    messages = [*turns("u"), {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    messages += [
        {"role": "tool", "tool_call_id": "call00000", "content": "noon"},
        {"role": "user", "content": "Go on."},
    ]
    assert "noon\n\nGo on.}[/TOOL_RESULTS]" in prompt(MISTRAL_TOOLS, messages)


NINE = """
{%- for message in messages %}
    {%- for id in [message.tool_call_id] + message.tool_calls | default([]) | map(attribute="id") | list if id %}
        {%- if id | length != 9 %}{{- raise_exception("nine letters or digits") }}{%- endif %}
        {{- "<" + id + ">" }}
    {%- endfor %}
    {{- message.content }}
{%- endfor %}"""


def test_ids_of_calls():
    """Mistral's templates want them short; other templates get them as they are."""

    def asked(source, call_id):
        calls = [{"role": "assistant", "content": None, "tool_calls": [CALL | {"id": call_id}]}]
        return prompt(source, turns("u") + calls + [{"role": "tool", "tool_call_id": call_id, "content": "noon"}])

    long = "toolu_0123456789abcdef"
    short = asked(NINE, long)[len("u0<") :][:9]
    assert asked(NINE, long) == f"u0<{short}><{short}>noon" != asked(NINE, long + "0") and short.isalnum()
    assert asked(NINE, "abcDEF123") == "u0<abcDEF123><abcDEF123>noon"
    assert asked(NINE.replace("!= 9", "< 9"), long) == f"u0<{long}><{long}>noon"


def test_what_has_more_than_text_is_not_joined():
    with pytest.raises(InvalidRequestError, match="turn by turn"):
        prompt(TURN_BY_TURN, [*turns("u"), {"role": "user", "name": "Bo", "content": "x"}])


@pytest.mark.parametrize("source", ALL.values())
def test_what_a_template_takes_stays_as_it_is(source):
    messages = turns("suau")
    untried = ChatTemplate(source, {"bos_token": "", "eos_token": ""})
    assert prompt(source, messages) == untried.render(messages, add_generation_prompt=False)
