import copy
import re
import threading
from datetime import datetime
from typing import Any

import pytest

from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.text.chat_template import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def render(source: str, messages: Any = USER, **kwargs: Any) -> str:
    return ChatTemplate(source, {"eos_token": "</s>"}).render(messages, **kwargs)


def test_a_conversation() -> None:
    messages = [{"role": "system", "content": "Be <brief>."}, *USER]
    expected = "<|im_start|>system\nBe <brief>.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert render(CHATML, messages) == expected + "<|im_start|>assistant\n"
    assert render(CHATML, messages, add_generation_prompt=False) == expected


def test_names_that_templates_expect() -> None:
    assert render("{{ eos_token }}{{ bos_token }}") == "</s>"
    assert render("{{ x }}", x="kwargs pass") == "kwargs pass"
    assert render("{{ tools is none }}") == "True"
    assert (
        re.fullmatch(r"\d{4}", year := render("{{ strftime_now('%Y') }}")) and abs(int(year) - datetime.now().year) < 2
    )


def test_to_json_escapes_nothing_and_keeps_the_order() -> None:
    assert render("{{ x | tojson }}", x={"b": "<é&'>", "a": 1}) == '{"b": "<é&\'>", "a": 1}'
    assert render("{{ x | tojson(indent=2) }}", x=[1]) == "[\n  1\n]"
    assert render("{{ x | tojson(separators=(',', ':'), sort_keys=true) }}", x={"b": 1, "a": 2}) == '{"a":2,"b":1}'


def test_blocks_leave_no_blank_lines() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


def test_loop_controls_and_generation_tag() -> None:
    assert render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "012"
    source = (
        "{% for m in messages %}{% generation %}{% set x = m.content %}[{{ x }}]{% endgeneration %}{% endfor %}{{ x }}"
    )
    assert render(source) == "[Hi]"


def test_loops_with_conditions_recursion_and_else() -> None:
    assert render("{% for i in range(6) if i is odd %}{{ loop.index }}:{{ i }} {% endfor %}") == "1:1 2:3 3:5 "
    assert render("{% for i in [] %}x{% else %}none{% endfor %}") == "none"
    tree = [{"name": "a", "sub": [{"name": "b", "sub": []}]}]
    source = "{% for n in tree recursive %}{{ n.name }}({{ loop(n.sub) }}){% endfor %}"
    assert render(source, tree=tree) == "a(b())"
    assert (
        render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}")
        == "1"
    )


def test_concatenation_and_arithmetic() -> None:
    assert render("{{ 'a' ~ 1 ~ none ~ missing ~ 'b' }}") == "a1Noneb"
    assert render("{{ 'ab' * 3 }} {{ 2 ** 10 }} {{ 1.5 * 1e9 }} {{ [1] + [2] }} {{ '' * 99 }}|") == (
        "ababab 1024 1500000000.0 [1, 2] |"
    )


def test_filters_and_blocks() -> None:
    assert render("{% filter upper | replace('A', 'b') %}ab{% endfilter %}") == "bB"
    assert render("{% set x %}a{{ 1 }}{% endset %}{% set y | upper %}b{% endset %}{{ x ~ y }}") == "a1B"
    assert render("{{ missing | default('d') | upper }} {{ [2, 1] | sort | join(',') }}") == "D 1,2"
    assert render("{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ loop.length }}{% endfor %}") == "1"


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "one\ntwo"
    assert render("[{{ messages[0].content }}]", [{"role": "user", "content": []}]) == "[]"


def test_tool_calls_reach_the_template_as_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    before = copy.deepcopy(messages)
    source = "{{ messages[1].content }}{{ messages[1].tool_calls[0].function.arguments | tojson }}"
    assert render(source, messages) == '{"x": 1}'
    assert messages == before


def test_named_templates() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }} tools"}, {})
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[{"type": "function"}]) == "1 tools"
    with pytest.raises(ModelLoadError, match="rag"):
        ChatTemplate({"rag": "x"}, {})


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one"),
        ("hello", "must be a list"),
        (None, "must be a list"),
        ({"role": "user", "content": "x"}, "must be a list"),
        (["hello"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], "role"),
        ([{"role": 3, "content": "x"}], "role"),
        ([{"role": "user"}], "content must be a string"),
        ([{"role": "user", "content": None}], "content must be a string"),
        ([{"role": "user", "content": 7}], "content must be a string"),
        ([{"role": "user", "content": {"type": "text", "text": "x"}}], "content must be a string"),
        ([{"role": "user", "content": ["x"]}], r"content\[0\] must be an object"),
        ([{"role": "user", "content": [{"text": "x"}]}], r"content\[0\] must be an object"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "image_url"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text must be a string"),
        ([*USER, {"role": "assistant", "tool_calls": "f"}], r"messages\[1\].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}], "not JSON"),
    ],
)
def test_malformed_messages(messages: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        render(CHATML, messages)
    assert caught.value.param == "messages"


def test_malformed_arguments() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render(CHATML, tools="f")
    assert caught.value.param == "tools"
    with pytest.raises(InvalidRequestError, match="template argument"):
        ChatTemplate(CHATML, {}).render(USER, **{"messages": USER})


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ x", "{% endif %}", "{{ x | nofilter }}", "{% nosuch %}", "{% generation %}"]
)
def test_broken_templates_do_not_load(source: str) -> None:
    with pytest.raises(ModelLoadError, match="chat template"):
        ChatTemplate(source, {})


def test_python_has_nothing_to_say_about_a_template() -> None:
    """Its compiler warned on stderr of "int object is not subscriptable"."""
    assert render("{{ 1[0] is defined }}") == "False"


def test_the_template_may_refuse() -> None:
    with pytest.raises(InvalidRequestError, match="rejected the messages: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source", ["{{ a.b.c }}", "{{ 1 + 'x' }}", "{{ 1 // 0 }}", "{{ x | tojson }}", "{% include 'x' %}"]
)
def test_templates_that_fail(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="failed on these messages"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ (x | attr('__class__')).mro() }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    messages = copy.deepcopy(USER)
    with pytest.raises((ModelLoadError, InvalidRequestError)):
        render(source, messages, x="")
    assert messages == USER


def test_private_attributes_are_undefined() -> None:
    assert render("{{ raise_exception.__globals__ }}{{ messages.__class__ is defined }}") == "False"


def test_a_long_conversation_is_within_the_bounds() -> None:
    messages = [{"role": "user", "content": "x" * 1000}] * 5000
    template = ChatTemplate(CHATML, {})
    assert len(template.render(messages)) > 5_000_000
    assert not template.has_process, "it is quick enough here"


def test_the_bounds_hold_per_call_and_thread() -> None:
    template = ChatTemplate("{% for i in range(4_900) %}{% endfor %}ok", {})
    assert [template.render(USER) for _ in range(3)] == ["ok"] * 3
    out: list[str] = []
    threads = [threading.Thread(target=lambda: out.append(template.render(USER))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out == ["ok"] * 3
    assert not template.has_process


@pytest.mark.parametrize("piece", ["'call:' + c.function.arguments", "'call:' ~ c.function.arguments | tojson"])
def test_arguments_as_a_template_wants_them(piece):
    """DeepSeek's templates add them to a text, others print an object; clients send either."""
    source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ PIECE }}{% endfor %}{% endfor %}"
    template = ChatTemplate(source.replace("PIECE", piece), {})
    template.try_out()
    for arguments in ('{"a": "b"}', {"a": "b"}):
        message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
        assert template.render([{"role": "user", "content": "x"}, message]) == 'call:{"a": "b"}'
