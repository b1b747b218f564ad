"""Guesses from a sequence's own text and from past answers."""

import gc
import json
from typing import Any

from lullm.config.option.speculation import Speculation, parse_speculation
from lullm.sched.guess.suffix import PastAnswers, SuffixGuesses
from lullm.types.sequence import Sequence, SequenceStatus


def speculation(**values: Any) -> Speculation:
    found = parse_speculation(json.dumps({"method": "suffix", **values}))
    assert found is not None
    return found


def guesser_of(**values: Any) -> SuffixGuesses:
    return SuffixGuesses(speculation(**{"suffix_decoding_max_spec_factor": 2.0, **values}))


def sequence(number: int, prompt: list[int], answer: list[int], salt: str = "") -> Sequence:
    return Sequence(number, 0, prompt + answer, len(prompt), cache_salt=salt)


def end(guesser: SuffixGuesses, *seqs: Sequence) -> None:
    """The sequences run, and then end."""
    guesser.begin(seqs)
    for seq in seqs:
        seq.status = SequenceStatus.FINISHED_STOPPED
    guesser.begin([])


def test_its_own_text():
    guesser, seq = guesser_of(), sequence(0, [1, 2, 3, 4, 8], [1, 2])
    assert guesser.propose(seq, 9) == [3, 4, 8, 1]
    assert guesser.propose(seq, 2) == [3, 4]
    seq.append(3)
    assert guesser.propose(seq, 9) == [4, 8, 1, 2, 3, 4]


def test_past_answers_and_not_their_prompts():
    guesser = guesser_of()
    end(guesser, sequence(0, [70, 71, 72], [1, 2, 3, 4]))
    assert guesser.propose(sequence(1, [5], [1, 2]), 9) == [3, 4]
    assert guesser.propose(sequence(2, [5], [70, 71]), 9) == []


def test_an_answer_is_past_once_it_has_ended():
    guesser, seq = guesser_of(), sequence(0, [7], [1, 2, 3])
    guesser.begin([seq])
    guesser.begin([])  # it was preempted, and has a place in the queue
    assert guesser.propose(sequence(1, [5], [1, 2]), 9) == []
    end(guesser, seq)
    assert guesser.propose(sequence(2, [5], [1, 2]), 9) == [3]


def test_what_followed_more_surely_is_guessed():
    guesser = guesser_of()
    for number, behind in enumerate([6, 6, 9]):
        end(guesser, sequence(number, [7], [1, 2, behind]))
    assert guesser.propose(sequence(8, [1, 2, 5, 5], [1, 2]), 1) == [5], "it always followed here"
    assert guesser.propose(sequence(9, [1, 2, 5, 1, 2, 4, 1, 2, 3], [1, 2]), 1) == [6], "two of three times there"


def test_others_see_nothing_of_an_answer_with_a_salt():
    guesser = guesser_of()
    end(guesser, sequence(0, [7], [1, 2, 3], salt="a"))
    end(guesser, sequence(1, [7], [4, 5, 6]))
    assert guesser.propose(sequence(2, [7], [1, 2]), 9) == []
    assert guesser.propose(sequence(3, [7], [1, 2], salt="a"), 9) == []
    assert guesser.propose(sequence(4, [7], [4, 5], salt="a"), 9) == [], "nor does it look at others"
    assert guesser.propose(sequence(5, [7], [4, 5]), 9) == [6]


def test_the_oldest_answers_are_dropped():
    past = PastAnswers(4)
    for number in range(100):
        past.add([number, 1000 + number, 7])
        known = [
            each for each in range(100)
            if any(half.continuation([each, 1000 + each], 9.0, 9, 0.0).token_ids for half in past.halves)
        ]  # fmt: skip
        assert known == list(range(known[0], number + 1)) and min(number + 1, 2) <= len(known) <= 4


def test_none_are_kept_where_none_are_asked_for():
    guesser = guesser_of(suffix_decoding_max_cached_requests=0)
    end(guesser, sequence(0, [7], [1, 2, 3]))
    assert guesser.propose(sequence(1, [5], [1, 2]), 9) == []


def test_misses_make_it_silent_unless_the_number_is_fixed():
    for adaptive in (None, False):
        guesser, seq = guesser_of(**({} if adaptive is None else {"adaptive": False})), sequence(0, [1, 1, 1], [1])
        assert guesser.propose(seq, 9)
        guesser.learn(seq, 3, 0)
        seq.append(1)
        assert bool(guesser.propose(seq, 9)) == (adaptive is False)


def test_what_is_kept_of_a_sequence_goes_with_it():
    guesser, seq = guesser_of(), sequence(0, [1, 1, 1], [1])
    guesser.begin([seq])
    assert guesser.propose(seq, 9) and len(guesser._own) == 1
    guesser.begin([])
    del seq
    gc.collect()
    assert len(guesser._own) == 0
