"""Published templates' turns of speech beside transformers' own rendering."""

import pytest
from kit.template.structures import STRUCTURES
from transformers.utils.chat_template_utils import render_jinja_template

from lullm.errors import InvalidRequestError
from lullm.text.chat_template import ChatTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich <&>", "days": [1, 2]}}}
PLAIN = [
    {"role": "system", "content": "Be <brief>. "},
    {"role": "user", "content": " What is the weather?\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nRain."},
    {"role": "user", "content": "And in Zürich? 中"},
]
WITH_CALL = [
    *PLAIN,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": '{"rain": true}', "name": "weather"},
]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "é <b>", "parameters": PARAMETERS}}]
CASES = {
    "plain": (PLAIN, {}),
    "no system": (PLAIN[1:], {"add_generation_prompt": False}),
    "tools": (WITH_CALL, {"tools": TOOLS}),
    "variables": (PLAIN, {"enable_thinking": False, "date_string": "1 May 2026"}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", STRUCTURES)
def test_as_transformers_renders_it(name, case):
    source, (messages, options) = STRUCTURES[name], CASES[case]
    variables = {"add_generation_prompt": True, **options}
    tools = variables.pop("tools", None)
    expected, _ = render_jinja_template([messages], tools, chat_template=source, **TOKENS, **variables)
    assert ChatTemplate(source, TOKENS).render(messages, **CASES[case][1]) == expected[0]


def test_documents():
    documents = [{"title": "a title", "text": "é"}]
    source = STRUCTURES["Command R"]
    expected, _ = render_jinja_template([PLAIN], None, documents, chat_template=source, **TOKENS)
    assert ChatTemplate(source, TOKENS).render(PLAIN, documents=documents) == expected[0]


def test_a_template_that_refuses():
    source = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    source += "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}{{ m.content }}{% endfor %}"
    with pytest.raises(InvalidRequestError, match="rejected the messages: Roles must alternate user/assistant"):
        ChatTemplate(source, TOKENS).render(PLAIN)
    assert ChatTemplate(source, TOKENS).render(PLAIN[1:]).startswith(" What")
