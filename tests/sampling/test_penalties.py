"""Penalties against a naive reference."""

import numpy as np
import pytest
import torch

from lullm.sampling.penalties import apply_penalties_
from lullm.types.sampling_params import SamplingParams
from lullm.types.step import Draw

V = 40


def naive(row: np.ndarray, draw: Draw) -> np.ndarray:
    row, params = row.copy(), draw.params
    output = draw.token_ids[draw.prompt_len :]
    for token_id in range(V):
        if token_id in draw.token_ids:
            r = params.repetition_penalty
            row[token_id] = row[token_id] / r if row[token_id] > 0 else row[token_id] * r
        if token_id in output:
            row[token_id] -= params.presence_penalty + params.frequency_penalty * output.count(token_id)
    return row


@pytest.mark.parametrize("seed", range(10))
def test_penalties_equal_the_naive_ones(seed):
    rng = np.random.default_rng(seed)
    draws = [
        Draw(
            seq_id=i,
            seq_index=0,
            params=SamplingParams(
                presence_penalty=float(rng.choice([0.0, -1.0, 1.5])),
                frequency_penalty=float(rng.choice([0.0, -0.5, 0.7])),
                repetition_penalty=float(rng.choice([1.0, 0.5, 1.3])),
            ),
            seed=0,
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
    params = [SamplingParams(repetition_penalty=r) for r in (1e-300, 1e300)]
    draws = [Draw(i, 0, p, 0, [0, 1, 2], 1) for i, p in enumerate(params)]
    logits = torch.tensor([[2.0, 0.5, -3.0, 1.0]]).repeat(2, 1)
    apply_penalties_(logits, draws)
    assert not logits.isnan().any() and not logits.isposinf().any()
    assert logits[0, :2].min() > 1e30 and logits[1, :2].abs().max() < 1e-30


def test_without_penalties_nothing_changes():
    logits = torch.randn(2, V)
    before = logits.clone()
    apply_penalties_(logits, [Draw(i, 0, SamplingParams(), 0, [1, 2, 3], 1) for i in range(2)])
    assert torch.equal(logits, before)
