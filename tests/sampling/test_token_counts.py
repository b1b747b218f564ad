"""Penalties by counts that stay on the device: the bits of those that are built anew for each step."""

import numpy as np
import pytest
import torch
from kit.sched.plans import new_draw

from lullm.sampling.penalties import apply_penalties_
from lullm.sampling.token_counts import TokenCounts

V = 50


def new_draws(sequences, ids):
    draws = []
    for number in ids:
        tokens, prompt_len, params = sequences[number]
        draws.append(new_draw(number, token_ids=list(tokens), prompt_len=prompt_len, **params))
    return draws


def params_of(rng):
    return {
        "presence_penalty": float(rng.choice([0.0, -1.0, 1.5])),
        "frequency_penalty": float(rng.choice([0.0, -0.5, 0.7])),
        "repetition_penalty": float(rng.choice([1.0, 0.5, 1.3])),
    }


@pytest.mark.parametrize("seed", range(6))
def test_bits_are_those_of_lists_built_anew(seed):
    """Sequences come, grow, pause, are cut (a beam), go, and draw twice in a step."""
    rng = np.random.default_rng(seed)
    counts, sequences = TokenCounts(V), {}
    for step in range(40):
        if len(sequences) < 3 or rng.random() < 0.3:
            prompt = rng.integers(0, V, int(rng.integers(1, 12))).tolist()
            sequences[100 * seed + step] = [prompt, len(prompt), params_of(rng)]
        ids = [number for number in sequences if rng.random() < 0.8]
        ids += ids[:1] if rng.random() < 0.3 else []
        draws = new_draws(sequences, ids)
        logits = torch.from_numpy(rng.normal(size=(len(ids), V)) * 3).float()
        expected = logits.clone()
        apply_penalties_(expected, draws)
        counts.apply_(logits, draws)
        assert torch.equal(logits, expected)
        for number in set(ids):
            tokens, prompt_len, _ = sequences[number]
            if rng.random() < 0.1 and len(tokens) > prompt_len + 1:
                del tokens[int(rng.integers(prompt_len, len(tokens))) :]
            tokens.append(int(rng.integers(0, V)))
        if rng.random() < 0.15:
            del sequences[next(iter(sequences))]


def test_a_step_brings_what_is_new():
    counts, tokens = TokenCounts(V), [1, 2, 3, 4]
    counts._room(1, torch.device("cpu"))
    first = counts.arrivals([new_draw(7, token_ids=tokens, prompt_len=3, presence_penalty=1.0)])
    assert (len(first.occurred), len(first.output), first.cleared) == (4, 1, first.places)
    next_one = counts.arrivals([new_draw(7, token_ids=[*tokens, 4], prompt_len=3, presence_penalty=1.0)])
    assert (len(next_one.occurred), len(next_one.output), next_one.cleared) == (1, 1, [])
    other = counts.arrivals([new_draw(7, token_ids=[*tokens, 9, 9], prompt_len=3, presence_penalty=1.0)])
    assert (len(other.occurred), len(other.output), other.cleared) == (6, 3, other.places)


def test_extreme_penalties_and_broken_logits():
    draws = [
        new_draw(i, token_ids=[0, 1, 2], prompt_len=1, repetition_penalty=r) for i, r in enumerate((1e-300, 1e300))
    ]
    draws.append(new_draw(3, token_ids=[0, 1], prompt_len=1, presence_penalty=1.0))
    logits = torch.tensor([[2.0, 0.5, -3.0, 1.0], [2.0, 0.5, -3.0, 1.0], [torch.inf, torch.nan, -0.0, -torch.inf]])
    expected = logits.clone()
    apply_penalties_(expected, draws)
    TokenCounts(4).apply_(logits, draws)
    assert torch.equal(logits.nan_to_num(7.0, 1e38), expected.nan_to_num(7.0, 1e38))


def test_without_penalties_nothing_is_kept():
    logits = torch.randn(2, V)
    before, counts = logits.clone(), TokenCounts(V)
    counts.apply_(logits, [new_draw(i, token_ids=[1, 2, 3], prompt_len=1) for i in range(2)])
    assert torch.equal(logits, before) and counts._occurs is None
