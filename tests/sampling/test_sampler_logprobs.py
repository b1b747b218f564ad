"""Log-probabilities and ranks, raw and processed, of drawn tokens and of prompts."""

import math

import numpy as np
import pytest
import torch
from kit.sched.plans import new_draw, sample

from lullm.sampling.sampler import Sampler
from lullm.types.draw import Draw

V = 200


def draw(seed=0, token_ids=(1, 2, 3), **params) -> Draw:
    return new_draw(seed=seed, token_ids=token_ids, prompt_len=1, **params)


def logits_of(rows, seed=0):
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 2


def log_softmax(row):
    row = np.asarray(row, np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


def expected(logprobs, chosen, num):
    """Chosen first, then the best without it, with ranks."""
    order = sorted(range(len(logprobs)), key=lambda t: (-logprobs[t], t))
    ids = [chosen] + [t for t in order[:num] if t != chosen]
    return [(t, logprobs[t], 1 + int((logprobs > logprobs[t]).sum())) for t in ids if logprobs[t] > -math.inf]


def assert_ranked(found, wanted):
    assert [(t, r) for t, _, r in found] == [(t, r) for t, _, r in wanted]
    np.testing.assert_allclose([p for _, p, _ in found], [p for _, p, _ in wanted], atol=1e-5)


@pytest.mark.parametrize("num", [0, 1, 5, 50, V, V + 5])
def test_raw_logprobs_are_those_of_the_untouched_logits(num):
    logits = logits_of(20)
    draws = [
        draw(i, temperature=i % 3 * 2.0, logprobs=num, top_k=150, logit_bias={7: 5.0}, repetition_penalty=2.0)
        for i in range(20)
    ]
    for row, result in zip(logits, sample(Sampler(V), logits.clone(), draws), strict=True):
        assert_ranked(result.logprobs, expected(log_softmax(row), result.token_id, num))


def test_processed_logprobs_are_those_that_were_drawn_from():
    logits = logits_of(2)
    params = {"logprobs": 9, "logit_bias": {7: 5.0}, "allowed_token_ids": [3, 5, 7, 100, 101]}
    draws = [draw(temperature=0.5, top_k=3, **params), draw(temperature=0.0, top_k=3, **params)]
    results = sample(Sampler(V, "processed_logprobs"), logits.clone(), draws)
    for row, d, result in zip(logits.double().numpy(), draws, results, strict=True):
        biased = np.full(V, -math.inf)
        biased[[3, 5, 7, 100, 101]] = row[[3, 5, 7, 100, 101]]
        biased[7] += 5.0
        if d.params.temperature:  # a greedy draw knows neither temperature nor truncation
            biased /= d.params.temperature
            biased[biased < np.sort(biased)[-3]] = -math.inf
        assert_ranked(result.logprobs, expected(log_softmax(biased), result.token_id, 9))
    assert [len(r.logprobs) for r in results] == [3, 5]  # what cannot be drawn is not listed


def test_only_those_who_ask_get_logprobs_and_best_of_gets_the_chosen_one():
    logits = logits_of(4)
    draws = [draw(), draw(logprobs=2, temperature=0.0), draw(best_of=3), draw(logprobs=0)]
    results = sample(Sampler(V), logits.clone(), draws)
    assert [len(r.logprobs) for r in results] == [0, 2, 1, 1]
    for row, result in list(zip(logits, results, strict=True))[1:]:
        assert result.logprobs[0][0] == result.token_id
        assert result.logprobs[0][1] == pytest.approx(log_softmax(row)[result.token_id], abs=1e-5)


@pytest.mark.parametrize("num", [1, 3, 6])
def test_equally_likely_tokens_come_in_the_order_of_their_ids_and_share_a_rank(num):
    logits = torch.zeros(1, V)
    logits[0, [150, 30, 90]] = 3.0
    logits[0, 60] = 5.0
    [result] = sample(Sampler(V), logits.clone(), [draw(temperature=0.0, logprobs=num)])
    assert [(t, r) for t, _, r in result.logprobs][:4] == [(60, 1), (30, 2), (90, 2), (150, 2)][:num]
    [(chosen, *_)] = Sampler(V).prompt_logprobs(logits, [4], num)
    assert chosen[0] == 4 and chosen[2] == 5


def test_prompt_logprobs():
    logits = logits_of(50)
    before = logits.clone()
    targets = [(i * 37) % V for i in range(50)]
    targets[0] = int(logits[0].argmax())
    found = Sampler(V, "processed_logprobs").prompt_logprobs(logits, targets, 4)
    for row, target, ranked in zip(logits, targets, found, strict=True):
        assert_ranked(ranked, expected(log_softmax(row), target, 4))
    assert len(found[0]) == 4 and found[0][0][2] == 1
    assert torch.equal(logits, before)
