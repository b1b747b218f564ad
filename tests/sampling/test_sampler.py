"""The sampler against a naive one, row by row in float64, and what must hold of it in any batch."""

import math

import msgspec
import numpy as np
import pytest
import torch
from kit.sched.plans import new_draw, sample

from lullm.errors import ConfigError
from lullm.sampling.sampler import Sampler
from lullm.types.draw import Draw
from lullm.types.sampling_params import SamplingParams
from lullm.types.step import NO_TOKEN, DrawnToken

V = 300
MIXED = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 7},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 0.9, "min_p": 0.1},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.0, "repetition_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 1.0, "presence_penalty": 1.0, "logprobs": 3},
    {"temperature": 0.0, "logprobs": 0, "logit_bias": {5: 3.0}},
    {"temperature": 1.0, "allowed_token_ids": [1, 2, 3, 200], "logprobs": 2},
    {"temperature": 1.0, "n": 1, "best_of": 2},
    {"temperature": 5.0, "top_k": 250, "top_p": 0.99},
]


def draw(token_ids=(1, 2, 3), prompt_len=2, **options) -> Draw:
    return new_draw(token_ids=token_ids, prompt_len=prompt_len, **options)


def random_logits(rows, vocab_size=V, seed=0, scale=3.0):
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def mixed_draws(num, seed=0):
    rng = np.random.default_rng(seed)
    return [
        draw(seed=i, seq_id=i, token_ids=rng.integers(0, V, 20).tolist(), prompt_len=8, **MIXED[i % len(MIXED)])
        for i in range(num)
    ]


def token_ids(results: list[DrawnToken]) -> list[int]:
    return [r.token_id for r in results]


def reference_probs(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """The distribution that temperature, top_k, top_p and min_p leave of one row; sorts, loops, no ties expected."""
    x = logits.double().numpy() / params.temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    order = np.argsort(-p)
    if params.top_k > 0:
        order = order[: params.top_k]
    in_top_k = p[order].sum()
    kept, mass = [], 0.0
    for token_id in order:
        if mass >= params.top_p * in_top_k:
            break
        kept.append(token_id)
        mass += p[token_id]
    kept = [t for t in kept if p[t] >= params.min_p * p.max()]
    result = np.zeros_like(p)
    result[kept] = p[kept] / p[kept].sum()
    return result


def chi_square(counts: np.ndarray, probs: np.ndarray) -> tuple[float, int]:
    """Statistic and degrees of freedom, with rare outcomes put together."""
    expected = probs * counts.sum()
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    used = expected > 0
    return float(((observed[used] - expected[used]) ** 2 / expected[used]).sum()), int(used.sum()) - 1


# --- greedy


def test_greedy_takes_the_best_and_the_lowest_id_among_equals_and_leaves_the_logits_alone():
    logits = random_logits(4)
    logits[1, [50, 20, 280]] = 99.0
    before = logits.clone()
    result = sample(Sampler(V), logits, [draw(seq_id=i, temperature=0.0) for i in range(4)])
    assert token_ids(result) == [int(np.argmax(row)) for row in before.numpy()]
    assert result[1] == DrawnToken(1, 20)
    assert torch.equal(logits, before)


def test_no_draws_give_no_tokens():
    assert sample(Sampler(V), torch.empty(0, V), []) == []
    assert Sampler(V).prompt_logprobs(torch.empty(0, V), [], 3) == []


def test_wrong_shapes_and_modes_are_refused():
    with pytest.raises(ValueError, match="shape"):
        sample(Sampler(V), random_logits(2), [draw()])
    with pytest.raises(ValueError, match="shape"):
        Sampler(V).prompt_logprobs(random_logits(2), [1], 0)
    with pytest.raises(ConfigError, match="logprobs_mode"):
        Sampler(V, "cooked")


# --- distributions and filters


DISTRIBUTIONS = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 2.0, "top_k": 10},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.5, "min_p": 0.05},
    {"temperature": 1.2, "top_k": 30, "top_p": 0.85, "min_p": 0.02},
]


@pytest.mark.parametrize(
    ("vocab_size", "params"),
    [
        pytest.param(size, params, marks=pytest.mark.slow if size == 1300 and number % 2 else ())
        for size in (50, 1300)
        for number, params in enumerate(DISTRIBUTIONS)
    ],
)
def test_tokens_follow_the_distribution(vocab_size, params):
    row = random_logits(1, vocab_size, seed=vocab_size)
    num_draws = 2000
    draws = [draw(seed=i, **params) for i in range(num_draws)]
    drawn = token_ids(sample(Sampler(vocab_size), row.repeat(num_draws, 1), draws))
    probs = reference_probs(row[0], draws[0].params)
    counts = np.bincount(drawn, minlength=vocab_size)
    assert not counts[probs == 0].any()
    statistic, freedom = chi_square(counts, probs)
    assert statistic < freedom + 4 * math.sqrt(2 * freedom) + 4


@pytest.mark.parametrize("vary", ["output_len", "seq_index"])
def test_one_seed_gives_independent_tokens_along_a_sequence_and_across_sequences(vary):
    row = random_logits(1, 20, seed=3, scale=1.0)
    if vary == "output_len":
        draws = [draw(seed=7, token_ids=[0] * (2 + i), prompt_len=2) for i in range(2000)]
    else:
        draws = [draw(seed=7, seq_index=i) for i in range(2000)]
    drawn = np.array(token_ids(sample(Sampler(20), row.repeat(2000, 1), draws)))
    probs = reference_probs(row[0], draws[0].params)
    pairs = np.bincount(drawn[:-1] * 20 + drawn[1:], minlength=400)
    statistic, freedom = chi_square(pairs, np.outer(probs, probs).ravel())
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("seed", range(8))
def test_filters_keep_exactly_what_the_reference_keeps(seed):
    rng = np.random.default_rng(seed)
    vocab_size = 5000  # wider than the candidates that are looked at first
    draws = [
        draw(
            temperature=float(rng.uniform(0.3, 4.0)),
            top_k=int(rng.choice([0, -1, 1, 5, 60, 3000, 4999, 5000, 99999])),
            top_p=float(rng.choice([1.0, 0.999, 0.9, 0.5, 0.01])),
            min_p=float(rng.choice([0.0, 0.001, 0.3, 1.0])),
            logprobs=vocab_size,
        )
        for _ in range(6)
    ]
    logits = random_logits(6, vocab_size, seed=seed)
    results = sample(Sampler(vocab_size, "processed_logprobs"), logits.clone(), draws)
    for row, d, result in zip(logits, draws, results, strict=True):
        probs = reference_probs(row, d.params)
        found = {token_id: logprob for token_id, logprob, _ in result.logprobs}
        assert set(found) == set(np.flatnonzero(probs))
        np.testing.assert_allclose(list(found.values()), np.log(probs[list(found)]), atol=2e-5)


def test_equally_likely_tokens_are_kept_together():
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    for params in ({"top_k": 2}, {"top_p": 0.5}):
        draws = [draw(seed=i, **params) for i in range(200)]
        assert set(token_ids(sample(Sampler(5), logits.repeat(200, 1), draws))) == {0, 1, 2, 3}


def test_logits_of_minus_infinity_are_never_drawn():
    logits = random_logits(1)
    logits[0, ::2] = -math.inf
    draws = [draw(seed=i, temperature=10.0, **p) for i in range(200) for p in ({}, {"top_p": 0.99}, {"top_k": 200})]
    assert all(t % 2 for t in token_ids(sample(Sampler(V), logits.repeat(600, 1), draws)))


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300, 5e-324])
def test_tiny_temperatures_choose_the_best_without_overflow(temperature):
    logits = random_logits(32, scale=50.0)
    drawn = token_ids(sample(Sampler(V), logits.clone(), [draw(seed=i, temperature=temperature) for i in range(32)]))
    assert drawn == logits.argmax(-1).tolist()


def test_a_huge_temperature_is_uniform_over_what_is_possible():
    logits = torch.tensor([[5.0, -math.inf, -5.0]])
    draws = [draw(seed=i, temperature=1e300) for i in range(300)]
    counts = np.bincount(token_ids(sample(Sampler(3), logits.repeat(300, 1), draws)), minlength=3)
    assert counts[1] == 0 and min(counts[0], counts[2]) > 100


def test_a_vocabulary_of_two():
    logits = torch.tensor([[0.0, 1.0]])
    draws = [draw(seed=i, token_ids=[0, 1, 0], top_k=5, top_p=0.9, logprobs=5) for i in range(100)]
    results = sample(Sampler(2), logits.repeat(100, 1), draws)
    assert set(token_ids(results)) == {0, 1}
    assert all(len(r.logprobs) == 2 for r in results)


# --- independence and determinism


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_a_row_does_not_depend_on_its_batch(mode):
    vocab_size = 33_000  # enough for torch to share the work of one row among threads
    sampler, logits = Sampler(vocab_size, mode), random_logits(32, vocab_size)
    draws = mixed_draws(32)
    together = sample(sampler, logits.clone(), draws)
    alone = [sample(sampler, logits[i : i + 1].clone(), draws[i : i + 1])[0] for i in range(32)]
    backwards = sample(sampler, logits.flip(0), draws[::-1])[::-1]
    assert together == alone == backwards


def test_a_draw_depends_on_seed_sequence_and_output_len_but_not_on_the_prompt_or_the_sequence_id():
    logits = random_logits(1, scale=0.1)
    sampler = Sampler(V)

    def token(**kwargs):
        return sample(sampler, logits.clone(), [draw(**kwargs)])[0].token_id

    start = token(seed=5)
    assert start == token(seed=5) == token(seed=5, seq_id=9, token_ids=range(11), prompt_len=10)
    assert len({start, token(seed=6), token(seed=5, seq_index=1), token(seed=5, prompt_len=1)}) == 4


def test_seeds_of_every_size_are_taken():
    draws = [draw(seed=seed) for seed in (-(2**63), -1, 0, 2**63, 2**64 - 1)]
    assert len(set(token_ids(sample(Sampler(V), torch.zeros(5, V), draws)))) > 2


def test_forks_that_share_a_row_draw_differently():
    row = random_logits(1, scale=0.1)
    draws = [draw(seed=1, seq_index=i, seq_id=10 + i, n=8) for i in range(8)]
    results = sample(Sampler(V), row.repeat(8, 1), draws)
    assert [r.seq_id for r in results] == list(range(10, 18))
    assert len(set(token_ids(results))) > 4


# --- broken logits


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0}, {"top_p": 0.5}, {"top_k": 3}])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_row_has_no_token_and_harms_no_other(params, value):
    logits = random_logits(3)
    draws = [draw(seed=i, logprobs=2, **params) for i in range(3)]
    healthy = sample(Sampler(V), logits.clone(), draws)
    logits[1, 17] = value
    results = sample(Sampler(V), logits, draws)
    assert results[1] == msgspec.structs.replace(healthy[1], token_id=NO_TOKEN, logprobs=())
    assert [results[0], results[2]] == [healthy[0], healthy[2]]


def test_a_row_in_which_the_model_rules_out_every_token_has_none():
    logits = torch.full((2, V), -math.inf)
    assert token_ids(sample(Sampler(V), logits, [draw(), draw(temperature=0.0)])) == [NO_TOKEN, NO_TOKEN]
