"""Grammars of calls: whatever a model draws within them, the reader reads calls that fit their schemas."""

import json
import random
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from lullm.text.guided.grammar import grammar_of, joined_grammar
from lullm.text.guided.matchers import Guided, Matchers, unpacked
from lullm.text.reply.form.catalogue import CALLS, HARMONY, THINKING
from lullm.text.reply.form_reader import FormReader
from lullm.text.reply.grammar.reply import reply_grammar
from lullm.text.reply.whole import joined
from lullm.types.guided.params import Guide, StructuredOutputsParams
from lullm.types.packed import pack
from lullm.types.reply.form import ReplyForm
from lullm.types.reply.rules import CallRules, ReplyRules, ThinkingTokens, Tool

ADDED = [
    "<|eos|>",
    "<|end|>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<think>",
    "</think>",
    "<|channel|>",
]
ADDED += [
    "<|message|>",
    "<|call|>",
    "<|constrain|>",
    "<escape>",
    "<start_function_call>",
    "<end_function_call>",
    "<|start|>",
]
END = 256
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "integer"},
        "at": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "boolean"}}, "required": ["x"]},
        "hours": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "none": {"type": "null"},
    },
    "required": ["unit", "days"],
}  # fmt: skip
TOOLS = (Tool("get_weather", PARAMETERS), Tool("now", {"type": "object", "properties": {}}))
SCHEMAS = {tool.name: tool.parameters for tool in TOOLS}


@pytest.fixture(scope="module")
def backend() -> Backend:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={char: n for n, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(name, special=False) for name in ADDED])
    return backend


def rules_of(form_name, **calls) -> ReplyRules:
    form = ReplyForm(None, CALLS[form_name], HARMONY if form_name == "openai" else None)
    return ReplyRules(form, TOOLS, CallRules("required", **calls))


class Walk:
    """A model that draws any token that the grammar allows, and likes to end what it has begun."""

    def __init__(self, backend: Backend, grammar: str, marks):
        self._backend = backend
        size = backend.get_vocab_size(with_added_tokens=True)
        self._matchers = Matchers(backend.to_str, size)
        self._guide = Guide(grammar, (END,))
        self._matchers.check(self._guide)
        self._marks = [mark for mark in {*marks, '"', "}", "]"} if mark]

    def draw(self, seed: int, most: int = 1500, begun: str = "") -> str | None:
        """A reply; None: it did not end."""
        rng, ids = random.Random(seed), self._backend.encode(begun).ids
        while len(ids) < most:
            [bits] = unpacked(self._matchers.allowed([Guided(seed, self._guide, pack(ids))]))
            allowed = set(np.flatnonzero(bits).tolist())
            assert allowed, "the grammar is stuck"
            if END in allowed and (len(allowed) == 1 or rng.random() < 0.3):
                return self._backend.decode(ids, skip_special_tokens=False)
            liked = self._liked(self._backend.decode(ids[-40:], skip_special_tokens=False)) & allowed - {END}
            ids.append(rng.choice(sorted(liked if liked and rng.random() < 0.7 else allowed - {END})))
        return None

    def _liked(self, text: str) -> set[int]:
        """Tokens that go on with a mark which the text ends with the start of, or that are one."""
        liked = set()
        for mark in self._marks:
            start = next((n for n in range(min(len(mark) - 1, len(text)), -1, -1) if text.endswith(mark[:n])), 0)
            liked.add(self._backend.encode(mark[start:]).ids[0])
        return liked


def added(backend) -> dict[str, int]:
    return {token.content: n for n, token in backend.get_added_tokens_decoder().items()}


def read(rules, text):
    reader = FormReader(rules)
    return joined(reader.feed(text, []) + reader.finish())


@pytest.mark.parametrize("name", sorted(CALLS))
def test_what_is_drawn_is_read(backend, name):
    rules = rules_of(name)
    walk = Walk(backend, reply_grammar(rules, added(backend), (END,), has_form=False), rules.form.texts)
    num_calls = 0
    for seed in range(4):
        text = walk.draw(seed)
        if text is None:
            continue
        reader = FormReader(rules)
        reply = joined(reader.feed(text, []) + reader.finish())
        assert reply.text == reply.thinking == "" and reply.calls, text
        for call in reply.calls:
            schema = dict(SCHEMAS[call.name])
            if not isinstance(getattr(rules.form.calls.body, "arguments", "json"), str):  # lengths are not held there
                schema = json.loads(json.dumps(schema).replace("maxLength", "x").replace("maxItems", "y"))
            jsonschema.validate(json.loads(call.arguments), schema)
            num_calls += 1
    assert num_calls


def test_one_tool_once(backend):
    rules = replace(rules_of("hermes", names=("now",), is_parallel=False), tools=TOOLS[1:])
    walk = Walk(backend, reply_grammar(rules, added(backend), (END,), has_form=False), rules.form.texts)
    for seed in range(5):
        assert [call.name for call in read(rules, walk.draw(seed)).calls] == ["now"]


def thinking_rules(begins_inside, may_begin, tools=(), calls=CallRules(), form="hermes", thinking="qwen3"):  # noqa: B008
    form = ReplyForm(THINKING[thinking], CALLS[form], HARMONY if form == "openai" else None)
    return ReplyRules(form, tools, calls, ThinkingTokens((0,), (1,), begins_inside, may_begin))


@pytest.mark.parametrize("form", ["hermes", "openai"])
@pytest.mark.parametrize(("begins_inside", "may_begin"), [(True, True), (False, True), (False, False)])
def test_the_form_of_a_text_holds_behind_thoughts(backend, form, begins_inside, may_begin):
    thinking = {"hermes": "qwen3", "openai": "openai_gptoss"}[form]
    rules = thinking_rules(begins_inside, may_begin, form=form, thinking=thinking)
    outer = reply_grammar(rules, added(backend), (END,), has_form=True)
    grammar = joined_grammar(outer, grammar_of(StructuredOutputsParams(choice=["yes", "no"])))
    walk = Walk(backend, grammar, rules.form.texts)
    drawn = [text for text in map(walk.draw, range(12)) if text is not None]
    replies = [read(rules, text if form == "hermes" or not begins_inside else _OPENED + text) for text in drawn]
    assert {reply.text for reply in replies} <= {"yes", "no"} and replies
    marks = {THINKING[thinking].close.strip() in text for text in drawn}
    assert marks == ({True} if begins_inside else {True, False} if may_begin else {False})


_OPENED = "<|channel|>analysis<|message|>"


def test_a_text_of_a_form_or_a_call(backend):
    rules = thinking_rules(False, False, TOOLS[1:])
    outer = reply_grammar(rules, added(backend), (END,), has_form=True)
    grammar = joined_grammar(outer, grammar_of(StructuredOutputsParams(regex="[0-9]{2}")))
    walk = Walk(backend, grammar, rules.form.texts)
    replies = [read(rules, walk.draw(seed)) for seed in range(12)]
    assert {bool(reply.calls) for reply in replies} == {True, False}
    assert all(reply.text.isdecimal() != bool(reply.calls) for reply in replies)


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "mistral_list", "openai"])
@pytest.mark.parametrize("has_marks", [True, False])
def test_calls_of_strict_tools_fit_wherever_they_come(backend, name, has_marks):
    """With the mark as a token of its own, and as text."""
    if name == "openai" and not has_marks:
        return  # its marks are always tokens
    known = added(backend) if has_marks else {"<|eos|>": END}
    rules = replace(rules_of(name), calls=CallRules(), tools=(replace(TOOLS[0], is_strict=True), TOOLS[1]))
    grammar = reply_grammar(rules, known, (END,), has_form=False)
    form = CALLS[name]
    walk = Walk(backend if has_marks else bare(backend), grammar, rules.form.texts)
    mark = (form.section_open + form.open).split()[0]
    begun = "<|channel|>final<|message|>Hi" if name == "openai" else "Hi "
    assert walk.draw(1, begun=begun) is not None  # text alone will do
    calls = []
    for seed in range(4):
        text = walk.draw(seed, begun=mark if name == "openai" else begun + mark)
        reply = read(rules, text or "")
        assert text is None or len(reply.calls) > 0
        calls += reply.calls if text else []
    assert calls
    for call in calls:
        schema = json.loads(json.dumps(SCHEMAS[call.name]).replace("maxLength", "x").replace("maxItems", "y"))
        jsonschema.validate(json.loads(call.arguments), schema if call.name == "get_weather" else {"type": "object"})


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_only_allowed_tools_are_called(backend, choice):
    rules = replace(rules_of("hermes"), calls=CallRules(choice, (TOOLS[1].name,)), tools=(TOOLS[1],))
    walk = Walk(backend, reply_grammar(rules, added(backend), (END,), has_form=False), rules.form.texts)
    texts = [walk.draw(seed, begun="<tool_call>") for seed in range(4)]
    called = [call.name for text in texts if text for call in read(rules, text).calls]
    assert set(called) == {TOOLS[1].name}
    assert (walk.draw(1, begun="Hi ") is not None) if choice == "auto" else True


def bare(backend) -> Backend:
    """The same without marks among its tokens."""
    made = Backend(backend.model)
    made.pre_tokenizer, made.decoder = backend.pre_tokenizer, backend.decoder
    made.add_tokens([AddedToken("<|eos|>", special=False)])
    return made
