"""DrawTable.of: the columns as kernels read them."""

import math

import numpy as np
import pytest
import torch

from lullm.ops.draw_table import DrawTable
from lullm.types.draw import Draw, DrawParams

VOCAB = 50


def table(params, keys):
    return DrawTable.of([Draw(0, 0, DrawParams(**p)) for p in params], keys, VOCAB)


def test_each_column():
    kinds = [
        {"temperature": 0.0, "top_k": 7},
        {"temperature": 1e-60, "top_k": VOCAB + 5, "top_p": 0.25},
        {"temperature": 0.5, "min_p": 0.5},
        {"temperature": 1e60, "top_k": VOCAB - 1},
    ]
    found = table(kinds, np.array([1, 2, -(2**63), 4]))
    limits = np.finfo(np.float32)
    assert found.temperatures.tolist() == [0.0, float(limits.tiny), 0.5, float(limits.max)], "a random row stays random"
    assert found.top_k.tolist() == [7, VOCAB, VOCAB, VOCAB - 1]
    assert found.top_p.tolist() == [1.0, 0.25, 1.0, 1.0]
    floors = found.min_p_floors.tolist()
    assert floors[:2] == [-math.inf, -math.inf] and floors[2] == pytest.approx(math.log(0.5)) and floors[3] == -math.inf
    assert found.keys.tolist() == [1, 2, -(2**63), 4]
    dtypes = [getattr(found, name).dtype for name in found.__slots__]
    assert dtypes == [torch.float32, torch.int32, torch.float64, torch.float32, torch.int64]


def test_greedy_rows_need_no_random_numbers():
    greedy = table([{"temperature": 0.0}] * 3, None)
    assert greedy.temperatures.tolist() == [0.0] * 3
    drawn = table([{"temperature": 1.0}] * 3, np.full(3, 5))
    for name in greedy.__slots__:
        assert getattr(greedy, name).dtype == getattr(drawn, name).dtype, name
        assert getattr(greedy, name).shape == (3,)
