"""Tied weights: one parameter under two names has one memory, and is read once."""

import torch
from torch import nn

from lullm.arena.host import HostArena
from lullm.nn.linear import Linear
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.weights.materialize import materialize, weights_bytes
from lullm.weights.rule import WeightRules
from lullm.weights.target import WeightTargets


class Tied(nn.Module):
    rules = WeightRules()
    cuts = {}

    def __init__(self):
        super().__init__()
        self.first = Linear(8, 4, False, torch.float32)
        self.second = Linear(8, 4, False, torch.float32)
        self.second.weight = self.first.weight


def test_one_parameter_stays_one():
    model = Tied()
    assert weights_bytes(model) == 4 * 8 * 4
    materialize(model, HostArena("weights", weights_bytes(model)))
    assert model.first.weight is model.second.weight and not model.first.weight.is_meta
    assert WeightTargets(model, TORCH_CPU_OPS).names == {"first.weight"}
