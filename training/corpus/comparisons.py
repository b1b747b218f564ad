"""Yes/no comparisons for the demo corpus: numbers from 0 to 99, and things that clearly differ in size."""

from __future__ import annotations

import random
from itertools import combinations

from training.corpus.stories import article

# From small to big, one step a line. Only things on different lines are compared, so there is always a clear answer.
_SIZES = """
ant, flea, grain of sand
bee, fly, coin, button
mouse, egg, frog, key
rat, apple, bird, cup
cat, rabbit, duck, shoe
dog, goat, chair, sheep
bear, lion, pig, table
horse, cow, car, piano
elephant, bus, truck
house, whale, plane
tower, ship, castle
mountain, city, lake
"""
SIZES: dict[str, int] = {
    thing: step for step, line in enumerate(_SIZES.strip().splitlines()) for thing in line.split(", ")
}
"""Thing to size step; a larger step is a bigger thing."""

THING_PAIRS: tuple[tuple[str, str], ...] = tuple(
    pair for pair in combinations(SIZES, 2) if SIZES[pair[0]] != SIZES[pair[1]]
)
"""Every comparable pair of things, the smaller one first."""

_NUMBER_WORDS = {
    "larger than": 1,
    "bigger than": 1,
    "greater than": 1,
    "more than": 1,
    "smaller than": -1,
    "less than": -1,
}
_THING_WORDS = {"bigger than": 1, "larger than": 1, "smaller than": -1}


# "Larger" is asked more often than "smaller": with both equally often, neither the numbers nor the word alone say
# anything about the answer, and a run of 500 steps did not get beyond guessing.
_LARGER_SHARE = 0.7


def _choose(rng: random.Random, words: dict[str, int]) -> tuple[str, int]:
    side = 1 if rng.random() < _LARGER_SHARE else -1
    return rng.choice([word for word, its_side in words.items() if its_side == side]), side


def _answer(first: str, words: str, second: str, true: bool) -> str:
    return f"Yes, {first} is {words} {second}." if true else f"No, {first} is not {words} {second}."


def compare_numbers(rng: random.Random, a: int, b: int) -> tuple[str, str]:
    """Return a question about two numbers and its answer; equal numbers are neither larger nor smaller."""
    words, side = _choose(rng, _NUMBER_WORDS)
    return f"Is {a} {words} {b}?", _answer(str(a), words, str(b), (a - b) * side > 0)


def compare_things(rng: random.Random, first: str, second: str) -> tuple[str, str]:
    """Return a question about two things of `SIZES` and its answer. Raises KeyError for an unknown thing."""
    words, side = _choose(rng, _THING_WORDS)
    true = (SIZES[first] - SIZES[second]) * side > 0
    first, second = article(first), article(second)
    return f"Is {first} {words} {second}?", _answer(first, words, second, true)


def number_key(a: int, b: int) -> str:
    """Return the name of a number comparison for the split, the same for both orders."""
    return f"numbers:{min(a, b)}:{max(a, b)}"


def thing_key(first: str, second: str) -> str:
    """Return the name of a thing comparison for the split, the same for both orders."""
    return "things:" + ":".join(sorted((first, second)))
