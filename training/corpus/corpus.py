"""The demo corpus: seeded questions, answers and plain texts, written by this package and by nothing else.

Every question belongs to a named item (a pair of numbers, a country with a phrasing, ...). A hash of that name decides
once and for all whether the item is trained on or held out, so the two never meet, whatever seed draws them.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from training.corpus.comparisons import THING_PAIRS, compare_numbers, compare_things, number_key, thing_key
from training.corpus.countries import CAPITALS, OTHER_NAMES, PHRASINGS
from training.corpus.records import draw_record, draw_repeat, record_key
from training.corpus.smalltalk import SYSTEM_MESSAGES, draw_refusal, draw_talk
from training.corpus.stories import Story, draw_request, draw_story
from training.corpus.sums import ask, draw_count, draw_numbers, equation, pair_key

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

HELD_OUT_PERCENT = 8

TASKS: tuple[str, ...] = ("addition", "subtraction", "capitals", "yesno", "json")
"""The tasks that have held-out items and are scored."""

# Shares of the questions in training; plain documents add to the sums, the comparisons and the capitals. "repeat" is
# there because copying, which extraction and stories rest on, is learned sooner when it is asked for by itself.
_SHARES: dict[str, float] = {
    "addition": 0.12,
    "subtraction": 0.13,
    "capitals": 0.17,
    "yesno": 0.18,
    "json": 0.18,
    "repeat": 0.08,
    "talk": 0.03,
    "refusal": 0.06,
    "count": 0.05,
}


@dataclass(frozen=True)
class Item:
    """One question with its one right answer; `key` names what the split is decided on."""

    task: str
    key: str
    question: str
    answer: str


@dataclass(frozen=True)
class Piece:
    """A stretch of training text; `learn` says whether its tokens count in the loss."""

    text: str
    learn: bool


def held_out(key: str) -> bool:
    """Say whether the item of this name is kept away from training (about 8 in 100 are)."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 100 < HELD_OUT_PERCENT


def draw_item(rng: random.Random, task: str) -> Item:
    """Draw an item of any task, trained on or held out. Raises ValueError for an unknown task."""
    if task in ("addition", "subtraction"):
        sign = "+" if task == "addition" else "-"
        a, b = draw_numbers(rng)
        return Item(task, pair_key(a, sign, b), ask(rng, a, sign, b), equation(a, sign, b) + ".")
    if task == "capitals":
        country, form = rng.choice(tuple(CAPITALS)), rng.randrange(len(PHRASINGS))
        name = country if rng.random() < 0.85 else rng.choice(OTHER_NAMES.get(country, (country,)))
        answer = f"The capital of {country} is {CAPITALS[country]}."
        return Item(task, f"capital:{country}:{form}", PHRASINGS[form].format(name), answer)
    if task == "yesno":
        if rng.random() < 0.6:
            a, b = draw_numbers(rng)
            return Item(task, number_key(a, b), *compare_numbers(rng, a, b))
        first, second = rng.sample(rng.choice(THING_PAIRS), 2)
        return Item(task, thing_key(first, second), *compare_things(rng, first, second))
    if task == "json":
        question, record = draw_record(rng)
        return Item(task, record_key(record), question, json.dumps(record))
    if task == "count":
        question, answer = draw_count(rng)
        return Item(task, f"count:{answer}", question, answer)
    if task in ("talk", "refusal", "repeat"):
        question, answer = {"talk": draw_talk, "refusal": draw_refusal, "repeat": draw_repeat}[task](rng)
        return Item(task, f"{task}:{question}", question, answer)
    raise ValueError(f"unknown task {task!r}")


def draw_training_item(rng: random.Random, task: str) -> Item:
    """Draw until an item is not held out; small talk and refusals are not split, they are learned by heart."""
    while True:
        item = draw_item(rng, task)
        if task in ("talk", "refusal") or not held_out(item.key):
            return item


def held_out_items(task: str, count: int, seed: int = 1) -> list[Item]:
    """Return up to `count` distinct held-out items of a scored task, the same ones for the same seed.

    Raises ValueError when the task is not one of `TASKS`.
    """
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}")
    rng = random.Random(f"held-out:{task}:{seed}")
    found: dict[str, Item] = {}
    for _ in range(200 * count):
        item = draw_item(rng, task)
        if held_out(item.key):
            found.setdefault(item.key, item)
        if len(found) == count:
            break
    return list(found.values())


def _draw_training_story(rng: random.Random) -> Story:
    """Draw a story by its own seed, passing over the seeds that are held out."""
    while True:
        seed = rng.getrandbits(32)
        if not held_out(f"story:{seed}"):
            return draw_story(random.Random(seed))


def _typed(rng: random.Random, item: Item) -> str:
    """Return the question as people type it: some in lower case, some without the last mark, some after "please"."""
    text = item.question
    if item.task in ("json", "repeat"):
        return text
    if rng.random() < 0.15:
        text = text.lower()
    if rng.random() < 0.15 and text[-1] in "?.!":
        text = text[:-1]
    elif item.task not in ("talk", "refusal") and rng.random() < 0.04 and text[0].isalpha():
        text = rng.choice(("Please: ", "Hello! ", "Hi, ", "One question: ")) + text
    return text


def user_turn(question: str) -> str:
    """Return a user turn followed by the opening of the answer, as the chat template writes it."""
    return f"{TURN_START}user\n{question}{TURN_END}\n{TURN_START}assistant\n"


def draw_question(rng: random.Random, story_share: float = 0.0) -> tuple[str, str]:
    """Draw one question as typed and its answer from the training side, a story with the given probability."""
    if rng.random() < story_share:
        story = _draw_training_story(rng)
        request = draw_request(rng, story)
        return (request.lower() if rng.random() < 0.15 else request.rstrip("." * (rng.random() < 0.2))), story.text
    (task,) = rng.choices(tuple(_SHARES), tuple(_SHARES.values()))
    item = draw_training_item(rng, task)
    return _typed(rng, item), item.answer


def draw_conversation(rng: random.Random, turns: int, story_share: float = 0.0) -> list[Piece]:
    """Draw a chat of `turns` question/answer turns, one in seven of them after a system message.

    Only answers are learned, except in one conversation of ten, where the questions are too: sampling past the end of
    an answer then still gives text of this kind.
    """
    learn_all = rng.random() < 0.1
    pieces = []
    if rng.random() < 0.15:
        pieces.append(Piece(f"{TURN_START}system\n{rng.choice(SYSTEM_MESSAGES)}{TURN_END}\n", learn_all))
    for _ in range(turns):
        question, answer = draw_question(rng, story_share)
        pieces.append(Piece(user_turn(question), learn_all))
        pieces.append(Piece(f"{answer}{TURN_END}\n", True))
    return pieces


def _plain_sum(rng: random.Random) -> list[Piece]:
    """A written sum, one in five without spaces; only the result is learned."""
    answer = draw_training_item(rng, rng.choice(("addition", "subtraction"))).answer.removesuffix(".")
    left, _, result = answer.partition(" = ")
    if rng.random() < 0.2:
        return [Piece(left.replace(" ", "") + "=", False), Piece(result, True)]
    return [Piece(left + " =", False), Piece(" " + result, True)]


def _plain_comparison(rng: random.Random) -> list[Piece]:
    """A comparison with the bare verdict: many short ones, because the verdict is the hard part."""
    item = draw_training_item(rng, "yesno")
    return [Piece(item.question, False), Piece(" " + item.answer.partition(",")[0] + ".", True)]


def _plain_capital(rng: random.Random) -> list[Piece]:
    """A sentence about a capital."""
    head, _, tail = draw_training_item(rng, "capitals").answer.partition(" is ")
    return [Piece(head + " is", True), Piece(" " + tail, True)]


def draw_plain(rng: random.Random, story_share: float = 0.0) -> list[Piece]:
    """Draw a plain document: a story, or 1 to 5 lines of sums, of comparisons or about capitals."""
    if rng.random() < story_share:
        return [Piece(_draw_training_story(rng).text + END_OF_TEXT, True)]
    kind = rng.random()
    draw_line = _plain_sum if kind < 0.55 else _plain_comparison if kind < 0.82 else _plain_capital
    pieces: list[Piece] = []
    for line in range(rng.randint(1, 5)):
        if line:
            pieces.append(Piece("\n", False))
        pieces += draw_line(rng)
    return [*pieces, Piece(END_OF_TEXT, True)]


def sample_text(seed: int, documents: int) -> Iterator[str]:
    """Yield training documents as bare text without special tokens: what the tokenizer is trained on."""
    rng = random.Random(f"tokenizer:{seed}")
    for number in range(documents):
        pieces = draw_plain(rng, 0.3) if number % 3 == 0 else draw_conversation(rng, 1, 0.2)
        text = "".join(piece.text for piece in pieces)
        for special in (END_OF_TEXT, TURN_START, TURN_END):
            text = text.replace(special, "")
        yield text
