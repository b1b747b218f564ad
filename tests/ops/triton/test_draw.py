"""Drawing on the device against the CPU's sampler: the same keys give the same tokens."""

import math

import numpy as np
import pytest
import torch

from lullm.ops.draw_table import DrawTable
from lullm.ops.triton.device import launch_device
from lullm.ops.triton.draw.tokens import draw_tokens
from lullm.sampling.race import choose_tokens
from lullm.sampling.truncation import scale_by_temperature_, truncate_
from lullm.types.sampling_params import SamplingParams

DEVICE = launch_device()
INF = float("inf")


def random_keys(num):
    return np.random.default_rng(1).integers(-(2**63), 2**63 - 1, num)


def table_of(params, keys, vocab_size):
    return DrawTable(
        temperatures=torch.tensor([p.temperature for p in params], dtype=torch.float32, device=DEVICE),
        top_k=torch.tensor(
            [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params], dtype=torch.int32, device=DEVICE
        ),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float64, device=DEVICE),
        min_p_floors=torch.tensor([math.log(p.min_p) if p.min_p else -INF for p in params], device=DEVICE),
        keys=torch.tensor(keys, dtype=torch.int64, device=DEVICE),
    )


def draw_on_cpu(logits, params, keys):
    """(tokens, the logits that were drawn from), as the sampler does it."""
    logits = logits.clone()
    scale_by_temperature_(logits, logits.amax(-1), params)
    truncate_(logits, params)
    return choose_tokens(logits, torch.tensor(keys, dtype=torch.int64)), logits


PARAMS = [
    {},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 40, "temperature": 2.0},
    {"top_k": 700},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.999999, "temperature": 5.0},
    {"top_k": 50, "top_p": 0.8},
    {"min_p": 0.1},
    {"min_p": 0.3, "top_p": 0.95, "top_k": 100, "temperature": 1.5},
]


@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0], ids=["flat", "broad", "peaked"])
@pytest.mark.parametrize("vocab_size", [5, 1500])
def test_like_the_cpu(vocab_size, spread):
    generator = torch.Generator().manual_seed(vocab_size)
    params = [SamplingParams(**options) for options in PARAMS]
    logits = torch.randn(len(params), vocab_size, generator=generator) * spread
    logits[3, 1 :: max(vocab_size // 7, 2)] = -INF
    keys = random_keys(len(params))
    tokens, kept = draw_on_cpu(logits, params, keys)
    given = logits.to(DEVICE)
    actual = draw_tokens(given, table_of(params, keys, vocab_size), writes_logits=True)
    assert actual.tolist() == tokens.tolist()
    assert torch.equal(given.cpu(), kept)  # truncated at exactly the same logits


def test_the_whole_distribution():
    """Many keys, and all tokens that can be drawn."""
    logits = torch.tensor([[0.5, -INF, 2.0, 1.0, -3.0]])
    keys = random_keys(200)
    params = [SamplingParams(temperature=1.3, min_p=0.02)] * 200
    tokens, _ = draw_on_cpu(logits.expand(200, -1).clone(), params, keys)
    assert len(set(tokens.tolist())) == 4
    assert draw_tokens(logits.repeat(200, 1).to(DEVICE), table_of(params, keys, 5)).tolist() == tokens.tolist()


def test_equally_likely_tokens_are_kept_together():
    logits = torch.zeros(3, 600)
    logits[:, 100:104] = 2.0
    params = [SamplingParams(top_k=2), SamplingParams(top_p=0.001), SamplingParams(top_k=3, top_p=0.5)]
    given = logits.to(DEVICE)
    draw_tokens(given, table_of(params, [1, -6, 999], 600), writes_logits=True)
    assert [row.isfinite().nonzero().flatten().tolist() for row in given.cpu()] == [[100, 101, 102, 103]] * 3


def test_greedy_and_broken_rows():
    """Greedy takes the first of equals; a broken row gives -1, greedy or not, and the others do not mind."""
    logits = torch.randn(8, 1300, generator=torch.Generator().manual_seed(0))
    logits[0, [7, 1200]] = 9.0
    logits[2, 1100] = float("nan")
    logits[3, 5] = INF
    logits[4] = -INF
    logits[5, 700] = float("nan")
    params = [SamplingParams(temperature=t) for t in (0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1e-30, 1.0)]
    actual = draw_tokens(logits.to(DEVICE), table_of(params, [5] * 8, 1300)).tolist()
    best = logits.argmax(-1).tolist()
    assert actual[0] == 7
    assert [actual[1], actual[6]] == [best[1], best[6]]
    assert actual[2:6] == [-1] * 4
    assert actual[7] == draw_on_cpu(logits[7:], params[7:], [5])[0].item()


def test_extreme_keys():
    logits = torch.full((4, 700), -1.0)
    logits[:, 650:] = -INF
    params, keys = [SamplingParams()] * 4, [0, -1, 2**63 - 1, -(2**63)]
    tokens, _ = draw_on_cpu(logits, params, keys)
    assert draw_tokens(logits.to(DEVICE), table_of(params, keys, 700)).tolist() == tokens.tolist()
