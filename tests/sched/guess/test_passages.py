"""What stood behind the last tokens, in texts that are searched by chains of places."""

import random

import pytest

from lullm.sched.guess.passages import Passages


def passages(*texts: list[int], num_bits: int = 6) -> Passages:
    made = Passages(num_bits)
    for text in texts:
        made.extend(text)
        made.end_text()
    return made


def found(made: Passages, ending: list[int], per_token: float = 9.0, most: int = 9, share: float = 0.0) -> list[int]:
    return made.continuation(ending, per_token, most, share).token_ids


def test_the_longest_ending_counts():
    made = passages([9, 1, 2, 7], [1, 2, 8], [1, 2, 8])
    assert found(made, [5, 1, 2]) == [8]
    assert found(made, [9, 1, 2]) == [7], "of two places with a shorter one none counts"
    assert found(made, [3, 2]) == [] and found(made, [2]) == [] and found(made, []) == []


def test_places_vote_and_the_outvoted_drop_out():
    made = passages([1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 3, 4, 6], [1, 2, 7, 8])
    ending = [0, 1, 2]
    assert made.continuation(ending, 9.0, 9, 0.0) == ([3, 4, 6], 0.75 + 0.75 + 0.5)
    assert made.continuation(ending, 9.0, 9, 0.6) == ([3, 4], 1.5)
    assert made.continuation(ending, 9.0, 9, 0.8) == ([], 0.0)


def test_long_endings_have_more_guesses():
    made = passages(list(range(1, 30)))
    assert found(made, [1, 2], 1.0) == [3, 4]
    assert found(made, [1, 2, 3, 4], 1.0) == [5, 6, 7, 8]
    assert found(made, [1, 2, 3, 4], 0.5) == [5, 6]
    assert found(made, [1, 2, 3, 4], 1.0, most=3) == [5, 6, 7]
    assert found(made, [1, 2, 3, 4], 0.0) == []


def test_a_text_that_still_grows_is_found_in_itself_and_goes_round():
    made = Passages(6)
    text = [5, 6, 7, 5, 6]
    made.extend(text[:2])
    made.extend(text[2:])
    assert found(made, text) == [7, 5, 6, 7, 5, 6, 7, 5, 6]
    assert found(made, [6, 7, 5]) == [6, 6, 6, 6, 6, 6, 6, 6, 6]
    assert found(made, [7, 5, 6]) == found(made, text), "at the end itself nothing is behind it"


def test_nothing_is_found_across_a_text_s_beginning():
    made = passages([1, 2], [3, 4])
    assert found(made, [2, 3]) == [] and found(made, [1, 2]) == []


@pytest.mark.parametrize("num_bits", [0, 2, 8])
def test_any_texts_have_the_continuation_of_a_plain_search(num_bits):
    """Also where all pairs of tokens share a chain, or a few."""
    rng = random.Random(num_bits)
    for _ in range(300):
        texts = [[rng.randrange(4) for _ in range(rng.randrange(9))] for _ in range(3)]
        ending = [rng.randrange(4) for _ in range(rng.randrange(6))]
        made = passages(*texts, num_bits=num_bits)
        most = rng.randrange(5)
        assert found(made, ending, most=most) == plain_search(texts, ending, most)


def plain_search(texts: list[list[int]], ending: list[int], most: int) -> list[int]:
    """The continuation with the most votes, of which ties go to the newest, among the 8 newest places."""
    for length in range(len(ending), 1, -1):
        behind = [
            text[place + length :]
            for text in reversed(texts)
            for place in range(len(text) - length, -1, -1)
            if text[place : place + length] == ending[-length:]
        ][:8]
        if not behind:
            continue
        tokens: list[int] = []
        while len(tokens) < most:
            votes = [each[len(tokens)] for each in behind if len(each) > len(tokens)]
            if not votes:
                break
            tokens.append(max(votes, key=votes.count))
            behind = [each for each in behind if each[: len(tokens)] == tokens]
        return tokens
    return []
