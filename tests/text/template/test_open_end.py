"""Conversations that the model goes on with: the prompt ends with the last message."""

import pytest

from lullm.errors import InvalidRequestError
from lullm.text.chat_template import ChatTemplate
from lullm.text.template.open_end import cut_at, take_open_end

TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def rendered(source, turns=TURNS, **options):
    template = ChatTemplate(source, {})
    variables = template.variables(turns, {"continue_final_message": True, **options})
    tag = take_open_end(variables)
    return cut_at(template.render_variables(variables), tag)


def test_the_text_ends_with_the_last_message():
    assert rendered(CHATML) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nWell, "


def test_a_template_that_trims_takes_no_blank_of_the_end():
    assert rendered(CHATML.replace("m.content", "m.content | trim")).endswith("assistant\nWell, ")


def test_no_new_turn_is_begun():
    source = CHATML + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    assert rendered(source).endswith("Well, ")
    with pytest.raises(InvalidRequestError, match="exclude"):
        rendered(source, add_generation_prompt=True)


def test_what_cannot_be_continued():
    with pytest.raises(InvalidRequestError, match="does not show"):
        rendered("{{ messages[0].content }}")
    with pytest.raises(InvalidRequestError, match="with text"):
        rendered(CHATML, [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}])


def test_the_callers_messages_stay_as_they_are():
    rendered(CHATML)
    assert TURNS[-1]["content"] == "Well, "
