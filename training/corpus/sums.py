"""Arithmetic for the demo corpus: addition and subtraction of two numbers from 0 to 99, and counting.

Subtractions may go below zero ("5 - 9 = -4"). The answer always restates the sum ("17 + 25 = 42."), so that every
phrasing of a question leads the model to the same written form before it has to calculate.
"""

from __future__ import annotations

import random

LARGEST = 99

_ADD = (
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} =",
    "{a}+{b}=",
    "{a} + {b} = ?",
    "{a}+{b}?",
    "{a} plus {b}",
    "How much is {a} + {b}?",
    "How much is {a} plus {b}?",
    "What's {a} + {b}?",
    "What's {a} plus {b}?",
    "Calculate {a} + {b}.",
    "Compute {a} + {b}.",
    "Add {a} and {b}.",
    "Please add {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "Can you add {a} and {b}?",
    "I have {a} apples and get {b} more. How many apples do I have?",
)
_SUBTRACT = (
    "What is {a} - {b}?",
    "What is {a} minus {b}?",
    "{a} - {b}",
    "{a}-{b}",
    "{a} - {b} =",
    "{a}-{b}=",
    "{a} - {b} = ?",
    "{a}-{b}?",
    "{a} minus {b}",
    "How much is {a} - {b}?",
    "How much is {a} minus {b}?",
    "What's {a} - {b}?",
    "What's {a} minus {b}?",
    "Calculate {a} - {b}.",
    "Compute {a} - {b}.",
    "Subtract {b} from {a}.",
    "Please subtract {b} from {a}.",
    "What is the difference between {a} and {b}?",
    "Can you take {b} away from {a}?",
    "I have {a} apples and give away {b}. How many apples do I have?",
)


def solve(a: int, sign: str, b: int) -> int:
    """Return a + b or a - b; `sign` is "+" or "-". Raises ValueError for any other sign."""
    if sign == "+":
        return a + b
    if sign == "-":
        return a - b
    raise ValueError(f"unknown sign {sign!r}")


def equation(a: int, sign: str, b: int) -> str:
    """Return the written sum, e.g. "17 + 25 = 42"."""
    return f"{a} {sign} {b} = {solve(a, sign, b)}"


def pair_key(a: int, sign: str, b: int) -> str:
    """Return the name of a sum for the split; a + b and b + a share one, so neither order leaks the other."""
    if sign == "+":
        a, b = min(a, b), max(a, b)
    return f"sum:{a}{sign}{b}"


def draw_numbers(rng: random.Random) -> tuple[int, int]:
    """Draw two numbers from 0 to 99; in three pairs of ten one of them or both are small, as in first attempts."""
    kind = rng.random()
    if kind < 0.12:
        return rng.randint(0, 10), rng.randint(0, 10)
    if kind < 0.3:
        small, other = rng.randint(0, 9), rng.randint(0, LARGEST)
        return (small, other) if rng.random() < 0.5 else (other, small)
    return rng.randint(0, LARGEST), rng.randint(0, LARGEST)


def ask(rng: random.Random, a: int, sign: str, b: int) -> str:
    """Return one of the question forms for this sum; "give away" and "difference" only where a >= b."""
    forms = _ADD if sign == "+" else _SUBTRACT if a >= b else _SUBTRACT[:-3]
    return rng.choice(forms).format(a=a, b=b)


def draw_count(rng: random.Random) -> tuple[str, str]:
    """Draw a counting request and its answer, 2 to 20 numbers long, e.g. "Count from 3 to 6." / "3, 4, 5, 6."."""
    if rng.random() < 0.3:
        first, last = 1, rng.randint(2, 20)
        form = rng.choice(("Count to {last}.", "Count from {first} to {last}.", "Please count to {last}."))
    else:
        first = rng.randint(0, 80)
        last = min(first + rng.randint(1, 19), LARGEST)
        form = rng.choice(("Count from {first} to {last}.", "Please count from {first} to {last}."))
    return form.format(first=first, last=last), ", ".join(map(str, range(first, last + 1))) + "."
