"""The race: its noise, its winners against all noise computed, its distribution, and what a rounding changes."""

import math

import numpy as np
import pytest
import torch
from kit.sched.plans import new_draw

from lullm.ops.cpu import native_draw
from lullm.ops.cpu.library import absence
from lullm.ops.draw_table import DrawTable
from lullm.sampling.race import choose_tokens, gumbel_noise, keys_of, mix
from lullm.sampling.sampler import draw_tokens_
from lullm.types.draw import Draw, DrawParams

needs_native = pytest.mark.skipif(absence() is not None, reason="native ops are not built")


def random_keys(num, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, num))


def random_logits(rows, vocab_size, scale, seed=0):
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def test_the_bits_are_splitmix64s():
    """The first numbers of its stream from 1234567, as other implementations print them."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    states = np.uint64(1234567) + np.arange(1, 5, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert mix(states).tolist() == expected
    x = [(bits // 2**12 + 0.5) * 2.0**-52 for bits in expected]
    noise = gumbel_noise(torch.tensor(1234567), torch.arange(4))
    assert noise.tolist() == pytest.approx([-math.log(-math.log1p(-u)) for u in x], abs=1e-14)


def test_keys_are_numbers_of_the_streams_of_seeds_and_sequences():
    """In wrapping 64-bit numbers, whatever is kept of them."""
    facts = [(seed, index, length) for seed in (0, -1, 2**63, 12345) for index in (0, 1, 7) for length in (0, 1, 4095)]
    seeds, indices, lengths = (np.array(column, object) % 2**64 for column in zip(*facts, strict=True))
    gamma = 0x9E3779B97F4A7C15
    state = np.zeros(len(facts), np.uint64)
    for addends in (seeds + gamma, (indices + 1) * gamma, (lengths + 1) * gamma):
        state = mix(state + (addends % 2**64).astype(np.uint64))
    draws = [Draw(0, 0, DrawParams(seed=seed, seq_index=index), length) for seed, index, length in facts]
    for _ in range(2):
        assert keys_of(draws).tolist() == state.view(np.int64).tolist()
    assert keys_of([]).shape == (0,)


def test_noise_is_gumbels():
    noise = gumbel_noise(random_keys(100).unsqueeze(1), torch.arange(1000)).flatten().numpy()
    heights = np.linspace(-1.5, 5, 14)
    found = (noise[:, None] < heights).mean(0)
    expected = np.exp(-np.exp(-heights))
    assert (np.abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / len(noise))).all()


@pytest.mark.parametrize("vocab_size", [1, 17, 700, 9000])
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
def test_the_winner_is_the_best_of_all(vocab_size, scale):
    logits, keys = random_logits(50, vocab_size, scale), random_keys(50)
    logits[:, 5::7] = -math.inf
    logits -= logits.amax(-1, keepdim=True)
    scores = logits.double() + gumbel_noise(keys.unsqueeze(1), torch.arange(vocab_size))
    assert choose_tokens(logits, keys).tolist() == scores.argmax(-1).tolist()


def test_rows_without_a_number_give_some_token():
    broken = torch.full((1, 8), math.nan)
    assert choose_tokens(broken, random_keys(1)).tolist() == [0]
    assert choose_tokens(torch.empty(0, 8), random_keys(0)).tolist() == []


def native_tokens(logits, draws):
    return native_draw.draw_tokens(logits, DrawTable.of(draws, keys_of(draws), logits.shape[1]))


@needs_native
@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.6}, {"top_k": 12}, {"top_p": 0.8}, {"min_p": 0.05}, {"top_k": 60, "top_p": 0.9}],
    ids=str,
)
def test_100000_draws_follow_the_probabilities(params):
    row = random_logits(1, 400, 2.0)
    draws = [Draw(0, 0, DrawParams(seed=7, **params), output_len=i) for i in range(100_000)]
    kept = row.clone()
    draw_tokens_(kept, draws[:1])  # leaves what is drawn from
    probs = kept.double().softmax(-1).numpy()[0]
    found = native_tokens(row.expand(len(draws), -1).contiguous(), draws).bincount(minlength=400).numpy()
    assert not found[probs == 0].any()
    expected = probs * len(draws)
    common = expected >= 5
    statistic = ((found - expected)[common] ** 2 / expected[common]).sum()
    freedom = common.sum() - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def by_inverse_cdf(logits, uniforms):
    cumulative = logits.double().softmax(-1).cumsum(-1)
    return (cumulative < uniforms.unsqueeze(1)).sum(-1)


@needs_native
def test_rounded_logits_change_few_draws():
    """bfloat16's relative noise on flat and peaked rows: at least five times fewer changes than by inverse CDF."""
    changed, inverse_changed = 0, 0
    for seed, scale in enumerate((2.0, 3.0, 4.0)):
        logits = random_logits(2000, 5000, scale, seed)
        rounded = logits * (1 + 1e-3 * random_logits(2000, 5000, 1.0, seed + 10))
        draws = [Draw(0, 0, DrawParams(seed=seed), output_len=i) for i in range(2000)]
        changed += int((native_tokens(logits, draws) != native_tokens(rounded, draws)).sum())
        uniforms = torch.from_numpy(np.random.default_rng(seed).random(2000))
        inverse_changed += int((by_inverse_cdf(logits, uniforms) != by_inverse_cdf(rounded, uniforms)).sum())
    assert inverse_changed > 200
    assert changed * 5 <= inverse_changed, (changed, inverse_changed)


def test_a_dropped_token_does_not_change_the_other_tokens_noise():
    """The noise belongs to the id, not to its rank among what truncation left."""
    logits = random_logits(400, 50, 2.0)
    draws = [new_draw(seed=i) for i in range(400)]
    tokens = draw_tokens_(logits.clone(), draws)
    least = logits.argmin(-1)
    without = logits.scatter(1, least.unsqueeze(1), -math.inf)
    same = draw_tokens_(without, draws) == tokens
    assert (same | (tokens == least)).all()
