"""Small JSON extractions for the demo corpus (one sentence in, one flat JSON object out) and word lists to repeat.

The keys come out in the order in which the request names them. A third of the names and cities are made up from
syllables, so that copying is learned and not a list of names.
"""

from __future__ import annotations

import json
import random

from training.corpus.countries import CAPITALS
from training.corpus.stories import BOYS, GIRLS, words_of

# Request fields, then sentences that carry exactly these fields.
_SHAPES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("name", "age"),
        (
            "{name} is {age} years old.",
            "{name} is {age}.",
            "My friend {name} is {age} years old.",
            "{name} turned {age} last week.",
            "My name is {name} and I am {age} years old.",
        ),
    ),
    (
        ("name", "city"),
        (
            "{name} lives in {city}.",
            "{name} comes from {city}.",
            "My name is {name} and I live in {city}.",
            "{name} moved to {city} last year.",
        ),
    ),
    (
        ("name", "age", "city"),
        (
            "{name} is {age} years old and lives in {city}.",
            "{name}, {age}, lives in {city}.",
            "My name is {name}, I am {age} and I live in {city}.",
        ),
    ),
    (
        ("item", "price"),
        (
            "The {item} costs {price} euros.",
            "I paid {price} dollars for the {item}.",
            "You can buy the {item} for {price} euros.",
            "The price of the {item} is {price} dollars.",
        ),
    ),
    (("animal", "color"), ("The {animal} is {color}.", "I saw a {color} {animal}.", "She has a {color} {animal}.")),
)
_ITEMS = words_of("book hat ball lamp chair bike phone cup table watch bag coat pen clock guitar camera shirt jacket")
_ANIMALS = words_of("dog cat horse bird fish rabbit mouse fox bear cow pig duck goat wolf")
_COLORS = words_of("red blue green brown black white gray yellow orange golden")
_CITIES = tuple(city for city in CAPITALS.values() if city.isascii() and city.isalpha())

_REQUESTS = (
    "Extract {keys} as JSON: {sentence}",
    "Extract the {keys} as JSON: {sentence}",
    "Return {keys} as JSON: {sentence}",
    "Give me {keys} as JSON: {sentence}",
    "Write {keys} as JSON. {sentence}",
)


def _made_up(rng: random.Random) -> str:
    syllables = rng.randint(2, 3)
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(syllables)).capitalize()


def draw_record(rng: random.Random) -> tuple[str, dict[str, str | int]]:
    """Draw a request and the object that answers it; numbers are JSON numbers."""
    fields, sentences = rng.choice(_SHAPES)
    made_up = rng.random() < 0.33
    pool: dict[str, str | int] = {
        "name": _made_up(rng) if made_up else rng.choice(GIRLS + BOYS),
        "city": _made_up(rng) if made_up else rng.choice(_CITIES),
        "age": rng.randint(1, 99),
        "price": rng.randint(1, 99),
        "item": rng.choice(_ITEMS),
        "animal": rng.choice(_ANIMALS),
        "color": rng.choice(_COLORS),
    }
    sentence = rng.choice(sentences).format(**pool)
    order = list(fields)
    if rng.random() < 0.3:
        rng.shuffle(order)
    keys = ", ".join(order[:-1]) + f" and {order[-1]}"
    return rng.choice(_REQUESTS).format(keys=keys, sentence=sentence), {key: pool[key] for key in order}


def record_key(answer: dict[str, str | int]) -> str:
    """Return the name of an extraction for the split: its fields and values, whatever the sentence or the order."""
    return "record:" + json.dumps(answer, sort_keys=True)


_REPEATS = ("Repeat: {}", "Repeat after me: {}", "Please repeat: {}", "Say: {}", "Write: {}")


def draw_repeat(rng: random.Random) -> tuple[str, str]:
    """Draw a request to repeat 2 to 8 random words or numbers, and these words: plain practice in copying."""
    words = []
    for _ in range(rng.randint(2, 8)):
        pool = rng.choice((GIRLS, BOYS, _ITEMS, _ANIMALS, _COLORS, _CITIES, None, None, ()))
        if pool is None:
            words.append(_made_up(rng))
        else:
            words.append(rng.choice(pool) if pool else str(rng.randint(0, 999)))
    text = " ".join(words)
    return rng.choice(_REPEATS).format(text), text
