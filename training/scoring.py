"""Scoring for the demo model: pure functions from an item and an answer text to right or wrong."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass

from training.corpus.corpus import Item, held_out
from training.corpus.stories import HERO_REQUESTS, article, draw_story

_NUMBER = re.compile(r"-?\d+")
_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True)
class Score:
    """Result of one task: how many items, how many right, and the first wrong answers to look at."""

    task: str
    items: int
    right: int
    wrong: tuple[tuple[str, str], ...]

    @property
    def accuracy(self) -> float:
        """Share of right answers, 0 to 1; 0 without items."""
        return self.right / self.items if self.items else 0.0


def last_number(text: str) -> int | None:
    """Return the last whole number written in the text, or None; "27 - 64 = -37." gives -37."""
    found = _NUMBER.findall(text)
    return int(found[-1]) if found else None


def first_word(text: str) -> str:
    """Return the first word in lower case, or an empty string."""
    found = _WORD.search(text)
    return found.group().lower() if found else ""


def is_right(item: Item, answer: str) -> bool:
    """Say whether the answer gives what the item asks for, whatever else the sentence says.

    Sums: the last number is the result. Capitals: what follows "is" is the capital. Comparisons: yes or no. JSON:
    parses, and equals the expected object. Raises ValueError for a task that is not scored.
    """
    if item.task in ("addition", "subtraction"):
        return last_number(answer) == last_number(item.answer)
    if item.task == "capitals":
        named = answer.rpartition(" is ")[2].strip().removesuffix(".")
        return named == item.answer.rpartition(" is ")[2].removesuffix(".")
    if item.task == "yesno":
        return first_word(answer) == first_word(item.answer)
    if item.task == "json":
        try:
            return json.loads(answer) == json.loads(item.answer)
        except json.JSONDecodeError:
            return False
    raise ValueError(f"task {item.task!r} is not scored")


def score(task: str, items: list[Item], answers: list[str], shown: int = 3) -> Score:
    """Score one answer per item. Raises ValueError when the two lists differ in length."""
    wrong = [(item.question, answer) for item, answer in zip(items, answers, strict=True) if not is_right(item, answer)]
    return Score(task, len(items), len(items) - len(wrong), tuple(wrong[:shown]))


@dataclass(frozen=True)
class StoryRequest:
    """A request for a story and the hero it must be about."""

    question: str
    hero: str


def story_requests(count: int, seed: int = 1) -> list[StoryRequest]:
    """Return requests for stories about one hero each, drawn from held-out story seeds."""
    rng = random.Random(f"story-requests:{seed}")
    requests: list[StoryRequest] = []
    while len(requests) < count:
        number = rng.getrandbits(32)
        if held_out(f"story:{number}"):
            story = draw_story(random.Random(number))
            hero = article(f"{story.adjective} {story.hero}" if rng.random() < 0.5 else story.hero)
            requests.append(StoryRequest(rng.choice(HERO_REQUESTS).format(hero=hero), story.hero))
    return requests


def story_words(stories: int = 3000) -> frozenset[str]:
    """Return the words, in lower case, of this many drawn stories: practically all the grammar has."""
    words: set[str] = set()
    for seed in range(stories):
        words.update(word.lower() for word in _WORD.findall(draw_story(random.Random(seed)).text))
    return frozenset(words)


def story_is_sound(request: StoryRequest, text: str, known: frozenset[str]) -> bool:
    """Say whether a story ends with a full sentence, is about its hero and has only words of the story grammar.

    This finds broken words, endless stories and stories about someone else; whether a story makes sense is left to
    the reader.
    """
    words = [word.lower() for word in _WORD.findall(text)]
    ended = text.rstrip().endswith((".", "!", '"'))
    return ended and request.hero in words and len(words) > 30 and known.issuperset(words)
