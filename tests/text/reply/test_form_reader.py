"""Replies in every form, cut everywhere."""

import json
import random

import pytest
from text.reply.samples import SAMPLES, Sample

from lullm.text.reply.event import CallArguments, CallEnd, CallStart, Text, Thinking
from lullm.text.reply.form_reader import FormReader
from lullm.text.reply.whole import joined

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
