"""Replies in every form, cut everywhere."""

import json
import random
import time

import pytest
from text.reply.samples import SAMPLES, Sample

from lullm.text.reply.event import CallArguments, CallEnd, CallStart, Text, Thinking
from lullm.text.reply.form.catalogue import CALLS
from lullm.text.reply.form_reader import FormReader
from lullm.text.reply.whole import joined
from lullm.types.reply.form import ReplyForm
from lullm.types.reply.rules import ReplyRules, Tool

IDS = [sample.name for sample in SAMPLES]


def events_of(rules, pieces):
    reader = FormReader(rules)
    events = [event for piece in pieces for event in reader.feed(piece, [])]
    return events + reader.finish()


def said(rules, pieces):
    """Text, thoughts, and calls with their arguments as text; after a check of the events' order."""
    events = events_of(rules, pieces)
    open_call, num_calls = None, 0
    for event in events:
        match event:
            case Text(text) | Thinking(text):
                assert text and open_call is None
            case CallStart(index):
                assert open_call is None and index == num_calls
                open_call, num_calls = index, num_calls + 1
            case CallArguments(index, piece):
                assert index == open_call and piece
            case CallEnd(index):
                assert index == open_call
                open_call = None
    assert open_call is None
    reply = joined(events)
    assert len({call.id for call in reply.calls}) == len(reply.calls)
    return reply.text, reply.thinking, [(call.name, call.arguments) for call in reply.calls]


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_whole(sample: Sample):
    text, thinking, calls = said(sample.rules, [sample.raw])
    assert (text, thinking) == (sample.text, sample.thinking)
    assert [(name, json.loads(arguments)) for name, arguments in calls] == list(sample.calls)


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_streamed(sample: Sample):
    """Cut in two at every place, into single characters, and at random: the same reply, also of a reply that ends."""
    raw, rules, rng = sample.raw, sample.rules, random.Random(1)
    whole = said(rules, [raw])
    assert said(rules, list(raw)) == whole
    for cut in range(len(raw) + 1):
        assert said(rules, [raw[:cut], raw[cut:]]) == whole
    for _ in range(20):
        cuts = sorted(rng.choices(range(len(raw) + 1), k=rng.randrange(1, 12)))
        pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        assert said(rules, pieces) == whole
    for end in range(len(raw)):  # the length is full there
        assert said(rules, list(raw[:end])) == said(rules, [raw[:end]])


HOSTILE = {
    "marks": "<tool_call>" * 7_000,
    "calls without ends": '<tool_call>\n{"name": "now", "arguments": {"a": [' * 1_300,
    "calls that are none": '<tool_call>{"id": [[1, "<tool_call>{' * 2_700,
    "balanced calls that are none": '<tool_call>{"id":[' * 2_700 + "]}" * 2_700,
    "deep": '<tool_call>{"name": "now", "arguments": {"a": ' + "[" * 100_000,
    "blanks": "<tool_call>" + " \n" * 50_000 + "x" + " " * 70_000,
    "parameters": "<tool_call><function=now><parameter=" * 3_500,
    "a name": "<function=" + "n" * 100_000,
    "thoughts": "<think>" * 10_000 + "</think>" * 10_000,
    "headers": "<|channel|>analysis<|start|>" * 4_000,
    "brackets": "<|tool_call_start|>[" * 5_000,
    "keywords": "<start_function_call>call:now{" + "a:{" * 30_000,
    "quotes": "<start_function_call>call:now{a:" + "<escape>" * 10_001,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("form", ["hermes", "qwen3_coder", "functiongemma", "lfm2", "openai", "llama3_json"])
def test_hostile_replies(name, form):
    """100 kB in a second at most, in pieces of 1,000 characters; nothing is raised."""
    sample = Sample(name, (form, {"openai": "openai_gptoss"}.get(form, "qwen3")), HOSTILE[name])
    raw, started = sample.raw, time.process_time()
    said(sample.rules, [raw[start : start + 1000] for start in range(0, len(raw), 1000)])
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("form", "raw", "arguments"),
    [
        ("hermes", r'<tool_call>{"name": "f", "arguments": "{\"a\": \"\ud800\"}"}</tool_call>', {"a": "?"}),
        (
            "qwen3_coder",
            r'<tool_call><function=f><parameter=a>["\ud800"]</parameter></function></tool_call>',
            {"a": ["?"]},
        ),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>[NaN]</parameter></function></tool_call>", {"a": "[NaN]"}),
        (
            "qwen3_coder",
            "<tool_call><function=f><parameter=a>[1e999]</parameter></function></tool_call>",
            {"a": "[1e999]"},
        ),
        ("pythonic", r'[f(a="\ud800", b=1e999)]', {"a": "?", "b": "1e999"}),
    ],
)
def test_arguments_that_no_json_can_hold(form, raw, arguments):
    """Half a surrogate has no UTF-8, so that the answer could not be sent; NaN and Infinity are no JSON."""
    [(name, given)] = said(ReplyRules(ReplyForm(None, CALLS[form], None), tools=(Tool("f"),)), [raw])[2]
    given.encode()

    def refuse(constant):
        raise AssertionError(constant)

    assert name == "f" and json.loads(given, parse_constant=refuse) == arguments


def test_a_name_that_no_utf8_can_hold():
    raw = r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>'
    assert said(ReplyRules(ReplyForm(None, CALLS["hermes"], None), tools=(Tool("f"),)), [raw]) == (raw, "", [])
