"""The demo corpus: seeded, split for good, and right in every answer."""

from __future__ import annotations

import json
import random
import re

import pytest
from training.corpus.comparisons import SIZES
from training.corpus.corpus import (
    TASKS,
    draw_conversation,
    draw_item,
    draw_plain,
    draw_training_item,
    held_out,
    held_out_items,
    sample_text,
)
from training.corpus.countries import CAPITALS, OTHER_NAMES, PHRASINGS
from training.corpus.stories import draw_request, draw_story
from training.corpus.sums import equation, pair_key
from training.scoring import is_right, last_number, score, story_is_sound, story_requests, story_words


def test_same_seed_same_text() -> None:
    assert list(sample_text(3, 200)) == list(sample_text(3, 200))
    assert list(sample_text(3, 200)) != list(sample_text(4, 200))


def test_documents_are_seeded() -> None:
    def documents(seed: int) -> list[object]:
        rng = random.Random(seed)
        return [draw_conversation(rng, 2, 0.3) for _ in range(50)] + [draw_plain(rng, 0.3) for _ in range(50)]

    assert documents(1) == documents(1)
    assert documents(1) != documents(2)


@pytest.mark.parametrize("task", TASKS)
def test_training_never_meets_held_out_items(task: str) -> None:
    rng = random.Random(0)
    trained = {draw_training_item(rng, task).key for _ in range(3000)}
    kept = {item.key for item in held_out_items(task, 300)}
    assert len(kept) >= 100
    assert not trained & kept
    assert all(held_out(key) for key in kept)


def test_held_out_items_are_distinct_and_repeatable() -> None:
    items = held_out_items("addition", 200)
    assert len({item.key for item in items}) == len(items) == 200
    assert items == held_out_items("addition", 200)
    with pytest.raises(ValueError, match="unknown task"):
        held_out_items("poetry", 5)


def test_held_out_share_is_close_to_eight_percent() -> None:
    pairs = [pair_key(a, "+", b) for a in range(100) for b in range(a, 100)]
    assert 0.06 < sum(map(held_out, pairs)) / len(pairs) < 0.10


def test_held_out_sums_do_not_appear_in_plain_documents() -> None:
    rng = random.Random(5)
    sums = re.compile(r"(\d+) ?([+-]) ?(\d+) ?=")
    seen = 0
    for _ in range(2000):
        text = "".join(piece.text for piece in draw_plain(rng))
        for a, sign, b in sums.findall(text):
            seen += 1
            assert not held_out(pair_key(int(a), sign, int(b)))
    assert seen > 2000


def test_sums_are_right_and_keep_order_out_of_the_split() -> None:
    assert equation(17, "+", 25) == "17 + 25 = 42"
    assert equation(5, "-", 9) == "5 - 9 = -4"
    assert pair_key(3, "+", 8) == pair_key(8, "+", 3)
    assert pair_key(3, "-", 8) != pair_key(8, "-", 3)
    with pytest.raises(ValueError, match="sign"):
        equation(1, "*", 2)
    rng = random.Random(2)
    for _ in range(2000):
        item = draw_item(rng, rng.choice(("addition", "subtraction")))
        left, _, right = item.answer.removesuffix(".").partition(" = ")
        a, sign, b = left.split()
        assert int(right) == (int(a) + int(b) if sign == "+" else int(a) - int(b))
        assert {a, b} <= set(re.findall(r"\d+", item.question))


def test_comparisons_are_right() -> None:
    rng = random.Random(3)
    form = re.compile(r"Is (.+) (larger|bigger|greater|more|smaller|less) than (.+)\?")
    for _ in range(2000):
        item = draw_item(rng, "yesno")
        first, word, second = form.fullmatch(item.question).groups()
        sizes = [
            int(each) if each.isdigit() else SIZES[each.removeprefix("an ").removeprefix("a ")]
            for each in (first, second)
        ]
        true = sizes[0] < sizes[1] if word in ("smaller", "less") else sizes[0] > sizes[1]
        assert item.answer.startswith("Yes," if true else "No,")


def test_extractions_are_json_with_the_values_of_the_sentence() -> None:
    rng = random.Random(4)
    for _ in range(500):
        item = draw_item(rng, "json")
        for value in json.loads(item.answer).values():
            assert str(value) in item.question


def test_repeats_and_counts_are_right() -> None:
    rng = random.Random(7)
    for _ in range(300):
        repeat = draw_item(rng, "repeat")
        assert repeat.question.endswith(f": {repeat.answer}")
        count = draw_item(rng, "count")
        numbers = [int(each) for each in count.answer.removesuffix(".").split(", ")]
        assert numbers == list(range(numbers[0], numbers[-1] + 1)) and 2 <= len(numbers) <= 20
        assert str(numbers[-1]) in count.question


def test_refused_sums_are_out_of_range() -> None:
    rng = random.Random(8)
    for _ in range(1000):
        item = draw_item(rng, "refusal")
        numbers = [int(each) for each in re.findall(r"\d+", item.question)]
        if "up to 99" in item.answer:
            assert len(numbers) == 3 or max(numbers) > 99, item.question


def test_country_table() -> None:
    assert len(CAPITALS) >= 190
    assert len(PHRASINGS) == len(set(PHRASINGS))
    assert all(form.count("{}") == 1 for form in PHRASINGS)
    assert CAPITALS["France"] == "Paris" and CAPITALS["the United States"] == "Washington, D.C."
    assert set(OTHER_NAMES) <= set(CAPITALS)


def test_stories_are_filled_in_and_fit_their_request() -> None:
    for seed in range(500):
        story = draw_story(random.Random(seed))
        assert not re.search(r"[{}_]| a [aeiou]| an [^aeiou]", story.text), story.text
        assert story.text[-1] in '."'
        assert 50 < len(story.text.split()) < 150
        assert story.hero in story.text and story.name in story.text
        request = draw_request(random.Random(seed), story)
        assert "{" not in request and "story" in request.lower()


def test_scoring() -> None:
    assert last_number("27 - 64 = -37.") == -37
    assert last_number("none") is None
    rng = random.Random(6)
    for task in TASKS:
        item = draw_item(rng, task)
        assert is_right(item, item.answer)
        assert not is_right(item, "")
        result = score(task, [item, item], [item.answer, "nothing"])
        assert (result.items, result.right, result.accuracy) == (2, 1, 0.5)
        assert result.wrong == ((item.question, "nothing"),)
    with pytest.raises(ValueError, match="not scored"):
        is_right(draw_item(rng, "talk"), "Hello!")


def test_story_scoring() -> None:
    known = story_words(2000)
    request = story_requests(1)[0]
    filler = "the day was good and they went to the forest with the others. " * 3
    assert story_is_sound(request, f"Once upon a time there was a {request.hero}. {filler}", known)
    assert not story_is_sound(request, "Once upon a time", known)
    assert not story_is_sound(request, f"Once upon a time there was a {request.hero} bxqz. {filler}", known)
    assert not story_is_sound(request, f"Once upon a time. {filler}", known - {request.hero})
