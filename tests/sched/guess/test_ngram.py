"""Guesses from the text itself: the longest ending that stood before, at its latest place."""

import gc
import random

import numpy as np
import pytest

from lullm.config.option.speculation import Speculation
from lullm.sched.guess.ngram import NgramGuesses, continuation
from lullm.types.sequence import Sequence


def guessed(tokens: list[int], shortest: int = 2, longest: int = 4, num_tokens: int = 3) -> list[int]:
    return continuation(np.array(tokens, np.int32), shortest, longest, num_tokens)


@pytest.mark.parametrize(
    "tokens, guess",
    [
        ([1, 2, 3, 4, 5, 6, 1, 2], [3, 4, 5]),
        ([1, 2, 7, 0, 1, 2, 8, 0, 1, 2], [8, 0, 1]),  # the latest place
        ([9, 1, 2, 7, 5, 1, 2, 8, 9, 1, 2], [7, 5, 1]),  # but a longer ending first
        ([5, 6, 5, 6, 5, 6], [5, 6, 5]),  # the text goes round
        ([4, 4, 4], [4, 4, 4]),
        ([1, 2, 3, 9, 3], []),  # one token is too short
        ([1], []),
        ([1, 2], []),
    ],
)
def test_what_stood_behind(tokens, guess):
    assert guessed(tokens) == guess


def test_lengths_are_bounds():
    tokens = [1, 2, 3, 7, 9, 2, 3, 8, 9, 1, 2, 3]
    assert guessed(tokens, longest=3, num_tokens=1) == [7]
    assert guessed(tokens, longest=2, num_tokens=1) == [8]
    assert guessed([1, 5, 1], shortest=1) == [5, 1, 5]


def test_any_text_has_the_guess_of_a_plain_search():
    rng = random.Random(0)
    for _ in range(2_000):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(1, 30))]
        shortest = rng.randrange(1, 4)
        longest = shortest + rng.randrange(4)
        assert guessed(tokens, shortest, longest, 5) == plain_search(tokens, shortest, longest, 5)


def plain_search(tokens: list[int], shortest: int, longest: int, num_tokens: int) -> list[int]:
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                behind = tokens[start + length :]
                return [behind[i % len(behind)] for i in range(num_tokens)]
    return []


def guesser_of(num_tokens: int = 5) -> NgramGuesses:
    return NgramGuesses(Speculation(num_speculative_tokens=num_tokens, prompt_lookup_min=1, prompt_lookup_max=2))


def test_tokens_that_come_are_known():
    guesser, seq = guesser_of(), Sequence(0, 0, [1, 2, 3], 3)
    assert guesser.propose(seq, 9) == []
    for token_id in range(1_000):
        seq.append(token_id)
    seq.append(500)
    assert guesser.propose(seq, 9) == [501, 502, 503, 504, 505]
    assert guesser.propose(seq, 2) == [501, 502]


def test_misses_make_it_silent_for_longer_and_longer():
    guesser, seq = guesser_of(), Sequence(0, 0, [1, 1], 2)
    asked = []
    for _ in range(140):
        if guesser.propose(seq, 9):
            asked.append(len(seq))
            guesser.learn(seq, 5, 0)
        seq.append(1)
    assert np.diff(asked).tolist() == [2, 4, 8, 16, 32, 32, 32]
    while not guesser.propose(seq, 9):
        seq.append(1)
    guesser.learn(seq, 5, 2)
    assert guesser.propose(seq, 9), "one hit is enough"
    guesser.learn(seq, 5, 0)
    seq.append(1)
    assert not guesser.propose(seq, 9)
    seq.append(1)
    assert guesser.propose(seq, 9)


def test_what_is_kept_of_a_sequence_goes_with_it():
    guesser, seq = guesser_of(), Sequence(0, 0, [1, 1], 2)
    assert guesser.propose(seq, 9)
    assert len(guesser._histories) == 1
    del seq
    gc.collect()
    assert len(guesser._histories) == 0
