"""logit_bias, allowed_token_ids, bad words and min_tokens, and what happens when they contradict each other."""

import math

import pytest
import torch
from kit.sched.plans import new_draw, sample
from msgspec.structs import replace

from lullm.sampling.restrictions import apply_restrictions_, forbidden_ids
from lullm.sampling.sampler import Sampler
from lullm.types.draw import Draw
from lullm.types.step import NO_TOKEN

V = 10


def draw(token_ids=(0, 1), prompt_len=1, **options) -> Draw:
    return new_draw(token_ids=token_ids, prompt_len=prompt_len, **options)


def forbidden(draw: Draw) -> set[int]:
    return forbidden_ids(draw, draw.params.edits, V)


def restricted(*draws: Draw) -> list[list[float]]:
    logits = torch.zeros(len(draws), V)
    apply_restrictions_(logits, draws)
    return logits.tolist()


def allowed_of(row: list[float]) -> set[int]:
    return {i for i, x in enumerate(row) if x > -math.inf}


def test_bias_is_added_to_its_row_only():
    rows = restricted(draw(logit_bias={3: 2.5, 9: -100.0}), draw(), draw(logit_bias={0: 1.0}))
    assert rows[0] == [0, 0, 0, 2.5, 0, 0, 0, 0, 0, -100.0]
    assert rows[1] == [0] * V
    assert rows[2] == [1.0] + [0] * 9


def test_only_allowed_tokens_stay_and_keep_their_logits():
    rows = restricted(draw(allowed_token_ids=[2, 7], logit_bias={7: 1.0, 8: 50.0}), draw())
    assert rows[0] == [-math.inf] * 2 + [0] + [-math.inf] * 4 + [1.0] + [-math.inf] * 2
    assert rows[1] == [0] * V


def test_a_bad_word_forbids_its_last_token_after_the_others_were_just_generated():
    bad = [(4,), (5, 6), (1, 2, 3)]
    assert forbidden(draw([9, 9], 2, bad=bad)) == {4}
    assert forbidden(draw([9, 9, 5], 2, bad=bad)) == {4, 6}
    assert forbidden(draw([9, 9, 5, 1], 2, bad=bad)) == {4}
    assert forbidden(draw([9, 9, 1, 2], 2, bad=bad)) == {4, 3}
    assert forbidden(draw([9, 1, 2], 2, bad=bad)) == {4}  # the 1 stands in the prompt
    assert forbidden(draw([9, 9, 2], 2, bad=bad)) == {4}


def test_end_tokens_are_forbidden_until_min_tokens_are_there():
    for output_len in range(5):
        d = draw(range(3 + output_len), 3, end=(7, 8), min_tokens=3)
        assert forbidden(d) == ({7, 8} if output_len < 3 else set())
    assert allowed_of(restricted(draw(end=(7, 8), min_tokens=3))[0]) == set(range(V)) - {7, 8}


def test_end_tokens_are_free_without_min_tokens():
    assert draw([0], 1, end=(7, 8)).params.edits is None
    assert forbidden(draw([0], 1, end=(7, 8), logit_bias={1: 1.0})) == set()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bad_words_and_min_tokens_yield_when_no_token_would_be_left(temperature):
    contradiction = draw(allowed_token_ids=[3, 4], bad=[(3,)], end=(4,), min_tokens=9, temperature=temperature)
    everything = draw(bad=[(i,) for i in range(V)], temperature=temperature)
    rows = restricted(contradiction, everything)
    assert allowed_of(rows[0]) == {3, 4}
    assert allowed_of(rows[1]) == set(range(V))
    for result in sample(Sampler(V), torch.zeros(2, V), [contradiction, everything]):
        assert result.token_id >= 0


def test_ids_outside_the_vocabulary_are_ignored():
    d = draw(
        logit_bias={-1: 5.0, V: 5.0, 1: 2.0}, allowed_token_ids=[1, 2, V], bad=[(V,), (2,)], end=(-7,), min_tokens=5
    )
    row = restricted(d)[0]
    assert allowed_of(row) == {1} and row[1] == 2.0
    assert sample(Sampler(V), torch.zeros(1, V), [draw(allowed_token_ids=[V])])[0].token_id == NO_TOKEN


def test_restrictions_hold_through_a_whole_batch():
    draws = [
        draw(seq, 1, allowed_token_ids=[1, 2, 3], bad=[(1, 2)], end=(3,), min_tokens=2, temperature=5.0)
        for seq in ([0, 1], [0, 2], [0, 1, 1], [0, 2, 2])
    ]
    seen = [set() for _ in draws]
    for seed in range(60):
        reseeded = [replace(d, params=replace(d.params, seed=seed, seq_index=i)) for i, d in enumerate(draws)]
        for tokens, result in zip(seen, sample(Sampler(V), torch.zeros(4, V), reseeded), strict=True):
            tokens.add(result.token_id)
    assert seen == [{1}, {1, 2}, {1, 3}, {1, 2, 3}]
