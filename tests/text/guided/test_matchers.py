"""What a grammar allows next, whatever the matchers were asked before."""

import random

import numpy as np
import pytest

from lullm.errors import InvalidRequestError
from lullm.text.guided import matchers as module
from lullm.text.guided.grammar import grammar_of
from lullm.text.guided.matchers import Guided, Matchers, unpacked
from lullm.types.guided.params import Guide, StructuredOutputsParams
from lullm.types.packed import pack
from lullm.weights.folder import DEMO_FOLDER

VOCAB_SIZE = 2100  # more than the tokenizer has, as padded embeddings do
END = (0, 2)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": [1, 2, 3]}},
    },
    "required": ["name", "tags"],
}


def new_matchers():
    return Matchers((DEMO_FOLDER / "tokenizer.json").read_text, VOCAB_SIZE)


def allowed(matchers, sequences):
    return unpacked(matchers.allowed(sequences))[:, :VOCAB_SIZE]


def guide_of(**form):
    return Guide(grammar_of(StructuredOutputsParams(**form)), END)


def guided(seq_id, guide, tokens):
    return Guided(seq_id, guide, pack(tokens))


def walk(matchers, guide, rng, num_tokens, seq_id=0):
    """A random text of the grammar: its tokens, and the tokens that were allowed before each."""
    tokens, allowed_ids = [], []
    while len(tokens) < num_tokens:
        allowed_ids.append(np.flatnonzero(allowed(matchers, [guided(seq_id, guide, tokens)])[0]).tolist())
        tokens.append(rng.choice(allowed_ids[-1]))
        if tokens[-1] in END:
            break
    return tokens, allowed_ids


def test_a_choice_token_by_token():
    matchers, guide = new_matchers(), guide_of(choice=["yes", "no"])
    tokens, expected = walk(matchers, guide, random.Random(1), 20)
    assert tokens[-1] in END and set(expected[-1]) == set(END), "a complete text may only end"
    assert all(token_id < 2048 for ids in expected for token_id in ids), "no id beyond the tokenizer's"


@pytest.mark.parametrize("form", [{"json": SCHEMA}, {"regex": "(ab|c)*d{2,9}"}, {"grammar": 'start: "x" (" y")* "z"'}])
def test_the_answer_depends_on_the_tokens_alone(form):
    """Random walks, asked again in random order, with other sequences between, from one object and from new ones."""
    guide, rng = guide_of(**form), random.Random(7)
    matchers = new_matchers()
    cases = []
    for seq_id in range(6):
        tokens, allowed_ids = walk(matchers, guide, rng, 25, seq_id)
        cases += [(seq_id, tokens[:i], ids) for i, ids in enumerate(allowed_ids)]
    rng.shuffle(cases)
    for start in range(0, len(cases), 5):
        part = cases[start : start + 5]  # some sequences stand there several times, as drafts do
        found = allowed(matchers, [guided(seq_id, guide, tokens) for seq_id, tokens, _ in part])
        assert found.shape == (len(part), VOCAB_SIZE)
        for row, (_, _, expected) in zip(found, part, strict=True):
            assert np.flatnonzero(row).tolist() == expected
    seq_id, tokens, expected = cases[0]
    fresh = allowed(new_matchers(), [guided(seq_id + 100, guide, tokens)])[0]
    assert np.flatnonzero(fresh).tolist() == expected


FORCING = {"regex": "The (quick|slow) brown fox jumps over the lazy dog[.]"}


@pytest.mark.parametrize(
    "form",
    [{"json": SCHEMA}, {"regex": "[ab]{1,9}"}, {"choice": ["yes", "no", "none"]}, {"json_object": True}, FORCING],
)
def test_the_tokens_that_are_settled_are_those_of_the_mask(form):
    """Of the whole vocabulary and beyond, along a text; and a mask that is asked for in between is the same."""
    guide, rng = guide_of(**form), random.Random(5)
    asked = new_matchers()
    num_taken = num_forced = 0
    for seq_id in range(3):
        tokens, allowed_ids = walk(new_matchers(), guide, rng, 12)
        for length, expected in enumerate(allowed_ids):
            sequence = guided(seq_id, guide, tokens[:length])
            tried = [*rng.sample(range(VOCAB_SIZE), 200), *expected[:50], *END, VOCAB_SIZE - 1, VOCAB_SIZE, 10**6, -1]
            settled = {token_id: asked.settle(sequence, token_id) for token_id in tried}
            assert not [settled[token_id] for token_id in (-1, VOCAB_SIZE, 10**6) if settled[token_id] is not None]
            taken = {token_id for token_id, found in settled.items() if found == token_id}
            forced = {found for token_id, found in settled.items() if found not in (None, token_id)}
            assert forced <= set(expected) and (not forced or len(expected) == 1)
            assert taken <= set(expected)
            assert forced or taken >= (set(tried) & set(expected)) - set(END), "all of the mask but the end's tokens"
            num_taken += len(taken)
            num_forced += len(forced)
            assert np.flatnonzero(allowed(asked, [sequence])[0]).tolist() == expected
    assert num_taken
    assert num_forced or form != FORCING


def test_sequences_that_have_ended_are_forgotten():
    """1024 of them, each with a grammar of its own, held 550 MB."""
    matchers, rng, guide = new_matchers(), random.Random(3), guide_of(regex="[a-f]{9}")
    tokens, allowed_ids = walk(matchers, guide, rng, 4, seq_id=0)
    for seq_id in range(1, 100):  # one after the other, beside one that goes on
        matchers.step += 1
        allowed(matchers, [guided(100, guide, []), guided(seq_id, guide, tokens)])
        assert matchers._places.keys() >= {100, seq_id} and len(matchers._places) <= module._IDLE_STEPS + 2
    again = allowed(matchers, [guided(0, guide, tokens[:3])])[0]
    assert np.flatnonzero(again).tolist() == allowed_ids[3]


def test_bounded_caches_change_nothing(monkeypatch):
    monkeypatch.setattr(module, "_MAX_SEQUENCES", 2)
    monkeypatch.setattr(module, "_MAX_GRAMMARS", 2)
    matchers, rng = new_matchers(), random.Random(3)
    guides = [guide_of(regex=f"[a-{last}]{{5}}") for last in "cdef"]
    texts = [walk(matchers, guide, rng, 4, seq_id) for seq_id, guide in enumerate(guides)]
    assert len(matchers._places) == len(matchers._fresh) == 2
    for seq_id, (guide, (tokens, allowed_ids)) in enumerate(zip(guides, texts, strict=True)):
        again = allowed(matchers, [guided(seq_id, guide, tokens[: len(allowed_ids) - 1])])[0]
        assert np.flatnonzero(again).tolist() == allowed_ids[-1]


def test_tokens_outside_the_grammar_leave_the_end_only():
    """A bound of the library can be met in the middle, and nothing may hang or raise then."""
    matchers, guide = new_matchers(), guide_of(regex="a{3}")
    found = allowed(matchers, [guided(1, guide, [100, 101])])[0]
    assert np.flatnonzero(found).tolist() == list(END)
    assert np.flatnonzero(allowed(matchers, [guided(1, guide, [])])[0]).size, "and the sequence may start again"


@pytest.mark.parametrize(
    "form",
    [
        {"regex": "(a"},
        {"regex": "(" * 5000},
        {"grammar": "start: unknown"},
        {"json": {"type": "strin"}},
        {"json": {"$ref": "#/nowhere"}},
        {"json": '{"type":"array","items":' * 300 + "{}" + "}" * 300},
        {"json": {"allOf": [{"type": "string"}, {"type": "integer"}], "patternProperties": {"(": {}}}},
    ],
)
def test_wrong_or_too_large(form):
    with pytest.raises(InvalidRequestError, match="structured_outputs") as error:
        new_matchers().check(guide_of(**form))
    assert error.value.param == "structured_outputs" and len(str(error.value)) < 600
    assert "\n" not in str(error.value), "an error of the command line and of the log is one line"


@pytest.mark.parametrize("regex", ["((a{100}){100}){100}", "(a{1000}b{1000}){1000}", "(.*a){50}.*b.{500}c"])
def test_a_large_automaton_is_refused_or_answers(regex):
    """The library's own limits let the first of these take 13 s for a few tokens; ours 0.3 s, whichever way it ends."""
    matchers, guide = new_matchers(), guide_of(regex=regex)
    try:
        matchers.check(guide)
    except InvalidRequestError:
        return
    tokens, expected = walk(matchers, guide, random.Random(1), 8)
    assert tokens and all(expected)


@pytest.mark.parametrize("form", [{"regex": "a{100000}"}, {"grammar": 'root ::= "a"{100000}'}])
def test_a_grammar_that_fails_behind_its_first_mask_is_refused(form):
    with pytest.raises(InvalidRequestError, match="oo many"):
        new_matchers().check(guide_of(**form))


def test_a_grammar_that_becomes_too_large_allows_no_end():
    """The library allows the end token when it gives up, so that `b` seemed to be a whole text of this form."""
    matchers, guide = new_matchers(), guide_of(regex="[bc]a{1000000}")
    matchers.check(guide)
    tokens, expected = [], []
    while not expected or expected[-1].any():
        expected.append(allowed(matchers, [guided(1, guide, tokens)])[0])
        if expected[-1].any():
            tokens.append(int(np.flatnonzero(expected[-1])[0]))
    assert tokens and not any(mask[list(END)].any() for mask in expected)
    settled = guided(2, guide, tokens)
    assert matchers.settle(settled, END[0]) is None and not allowed(matchers, [settled]).any()


def test_a_grammar_that_nothing_fits():
    with pytest.raises(InvalidRequestError, match="no text fits"):
        new_matchers().check(guide_of(json={"$ref": "#"}))


def test_a_tokenizer_that_cannot_be_read():
    with pytest.raises(InvalidRequestError, match="tokenizer"):
        Matchers(lambda: "{}", 100).check(guide_of(regex="a"))
