"""Forms learned from chat templates: what the template prints for random calls is read back from it."""

import json
import random
from dataclasses import replace

import pytest
from kit.template.reply import STYLES, template
from kit.template.styles import CHATML, LLAMA3_TOOLS, MISTRAL_TOOLS, QWEN_TOOLS

from lullm.errors import ConfigError
from lullm.text.chat_template import ChatTemplate
from lullm.text.reply.form.catalogue import CALLS
from lullm.text.reply.form.detection import reply_form
from lullm.text.reply.form.learning import learned_calls, learned_thinking
from lullm.text.reply.form_reader import FormReader
from lullm.text.reply.whole import joined
from lullm.types.reply.form import KeywordValues, NamedBody, ObjectBody, ReplyForm, TaggedValues
from lullm.types.reply.rules import ReplyRules, Tool

ASK = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"s": {"type": "string"}}}
WORDS = ['"', "'", "\\", "\n", "é", "\U0001f600", "}", "]", "<", ", ", "x", " ", "null", "`", "\t", ": "]


def chat_template(source):
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})


def random_arguments(rng, depth=0):
    kinds = ["text", "text", "number", "bool", "none"] + ["list", "object"] * (depth < 3)

    def value():
        match rng.choice(kinds):
            case "text":
                return "".join(rng.choices(WORDS, k=rng.randrange(9)))
            case "number":
                return rng.choice([0, -7, 1.5, 10**12])
            case "bool":
                return rng.random() < 0.5
            case "list":
                return [random_arguments(rng, depth + 1) for _ in range(rng.randrange(3))]
            case "object":
                return random_arguments(rng, depth + 1)
        return None

    return {f"k{n}": value() for n in range(rng.randrange(4))}


def printed(source, *calls):
    """What the template prints between its marks of a turn."""
    called = [
        {"id": f"abcdefgh{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": "", "tool_calls": called}
    text = chat_template(source).render([*ASK, message], add_generation_prompt=False)
    prompt = chat_template(source).render(ASK)
    assert text.startswith(prompt)
    text = text[len(prompt) :].removeprefix("<think>\n\n</think>\n\n")
    return text.removesuffix("</a>\n").removesuffix("<|im_end|>\n").removesuffix("</s>")


def read(form, text):
    reader = FormReader(ReplyRules(ReplyForm(None, form), (Tool("go", SCHEMA), Tool("a_b-1", SCHEMA))))
    reply = joined([event for char in text for event in reader.feed(char, [])] + reader.finish())
    return reply.text, [(call.name, json.loads(call.arguments)) for call in reply.calls]


@pytest.mark.parametrize("style", [*STYLES, "qwen", "mistral"])
def test_random_calls_come_back(style):
    source = STYLES.get(style) or {"qwen": QWEN_TOOLS, "mistral": MISTRAL_TOOLS}[style]
    form, rng = learned_calls(chat_template(source)), random.Random(1)
    assert form is not None
    for _ in range(20):
        calls = [(rng.choice(["go", "a_b-1"]), random_arguments(rng)) for _ in range(rng.randrange(1, 4))]
        if not isinstance(form.body, ObjectBody) and form.body.arguments != "json":  # values without quotes
            quote = isinstance(form.body.arguments, KeywordValues) and form.body.arguments.quote
            python = isinstance(form.body.arguments, KeywordValues) and not quote
            calls = [(name, {"n": {"a": [1, {"b": 2.5}]}, "s": "".join(rng.choices(WORDS, k=5))}) for name, _ in calls]
            calls = calls if not python else [(name, {"n": [1, 2.5], "s": f"x{rng.random()}, )"}) for name, _ in calls]
            calls = calls if quote or python else [(name, {"s": one["s"]}) for name, one in calls]
        assert read(form, printed(source, *calls)) == ("", calls)


def test_well_known_tags():
    """Marks whose ends look alike."""
    coder = template(
        "{%- for c in m.tool_calls or [] %}{{- '\\n<tool_call>\\n<function=' ~ c.function.name ~ '>\\n' }}"
        "{%- for k, v in c.function.arguments.items() %}{{- '<parameter=' ~ k ~ '>\\n' ~ v ~ '\\n</parameter>\\n' }}"
        "{%- endfor %}{{- '</function>\\n</tool_call>' }}{%- endfor %}"
    )
    known = CALLS["qwen3_coder"]
    assert learned_calls(chat_template(coder)) == replace(known, open="\n" + known.open, separator="")


def test_what_is_learned_is_what_is_known():
    assert learned_calls(chat_template(QWEN_TOOLS)) == CALLS["hermes"]
    learned = learned_calls(chat_template(MISTRAL_TOOLS))
    assert learned and learned.section_open.strip() == "[TOOL_CALLS] [" and isinstance(learned.body, ObjectBody)
    tags = learned_calls(chat_template(STYLES["tags"]))
    assert tags and tags.body == NamedBody("]]\n", TaggedValues("[[arg ", "]]\n", "\n[[/arg]]\n"))
    section = learned_calls(chat_template(STYLES["a name before JSON, in a section"]))
    assert section and (section.section_open, section.open, section.section_close) == (
        "<<calls>>",
        "<<call>>",
        "<<end>>",
    )


@pytest.mark.parametrize("source", [CHATML, LLAMA3_TOOLS, "{{ messages[0].content }}", "{{ raise_exception('no') }}"])
def test_nothing_to_learn(source):
    assert learned_calls(chat_template(source)) is None
    assert learned_thinking(chat_template(source)) is None


def test_thoughts():
    form = learned_thinking(chat_template(STYLES["tags"]))
    assert form and (form.open, form.close) == ("(thinks) ", " (speaks) ")
    form = learned_thinking(chat_template(QWEN_TOOLS))
    assert form and (form.open, form.close) == ("<think>\n", "\n</think>\n\n")


def test_which_form_is_taken():
    assert reply_form(chat_template(QWEN_TOOLS), None, None).calls == CALLS["hermes"]
    assert reply_form(chat_template(MISTRAL_TOOLS), None, None).calls == CALLS["mistral_list"]
    assert reply_form(chat_template(MISTRAL_TOOLS), "mistral", None).calls == CALLS["mistral_list"]
    assert reply_form(chat_template(LLAMA3_TOOLS), None, None).calls == CALLS["llama3_json"]
    learned = reply_form(chat_template(STYLES["an object"]), None, None)
    assert (
        learned.calls and learned.calls.open == "<CALL>" and learned.thinking and learned.thinking.open == "(thinks) "
    )
    assert reply_form(chat_template(STYLES["an object"]), "none", "none") == ReplyForm()
    assert reply_form(None, None, None) == reply_form(chat_template(CHATML), None, None) == ReplyForm()
    for names in (("hermez", None), (None, "hermes"), ("template", None), (None, "template")):
        with pytest.raises(ConfigError, match=r"parser"):
            reply_form(chat_template(CHATML), *names)


def test_a_template_that_shows_calls_in_no_form_has_none():
    source = template("{%- for c in m.tool_calls or [] %}{{- c.function.name }}{%- endfor %}")
    assert reply_form(chat_template(source), None, "none").calls is None
