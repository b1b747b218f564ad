"""Penalties against a naive reference."""

import numpy as np
import pytest
import torch
from kit.sched.plans import new_draw

from lullm.sampling.penalties import apply_penalties_
from lullm.types.draw import Draw
from lullm.types.packed import unpack

V = 40


def naive(row: np.ndarray, draw: Draw) -> np.ndarray:
    row, params, token_ids = row.copy(), draw.params.edits, unpack(draw.token_ids)
    if params is None:
        return row
    output = token_ids[len(token_ids) - draw.output_len :]
    for token_id in range(V):
        if token_id in token_ids:
            r = params.repetition_penalty
            row[token_id] = row[token_id] / r if row[token_id] > 0 else row[token_id] * r
        if token_id in output:
            row[token_id] -= params.presence_penalty + params.frequency_penalty * output.count(token_id)
    return row


@pytest.mark.parametrize("seed", range(10))
def test_penalties_equal_the_naive_ones(seed):
    rng = np.random.default_rng(seed)
    draws = [
        new_draw(
            i,
            presence_penalty=float(rng.choice([0.0, -1.0, 1.5])),
            frequency_penalty=float(rng.choice([0.0, -0.5, 0.7])),
            repetition_penalty=float(rng.choice([1.0, 0.5, 1.3])),
            token_ids=rng.integers(0, V, 30).tolist(),
            prompt_len=int(rng.integers(1, 31)),  # up to: no output yet
        )
        for i in range(9)
    ]
    logits = torch.from_numpy(rng.normal(size=(9, V)) * 3).float()
    expected = [naive(row, draw) for row, draw in zip(logits.numpy(), draws, strict=True)]
    apply_penalties_(logits, draws)
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_extreme_repetition_penalties_make_no_infinite_logit_and_no_nan():
    draws = [new_draw(token_ids=[0, 1, 2], prompt_len=1, repetition_penalty=r) for r in (1e-300, 1e300)]
    logits = torch.tensor([[2.0, 0.5, -3.0, 1.0]]).repeat(2, 1)
    apply_penalties_(logits, draws)
    assert not logits.isnan().any() and not logits.isposinf().any()
    assert logits[0, :2].min() > 1e30 and logits[1, :2].abs().max() < 1e-30


def test_without_penalties_nothing_changes():
    logits = torch.randn(2, V)
    before = logits.clone()
    apply_penalties_(logits, [new_draw(i, token_ids=[1, 2, 3], prompt_len=1) for i in range(2)])
    assert torch.equal(logits, before)
