"""Mixture of experts (https://arxiv.org/abs/2101.03961): a router chooses a few MLPs for every token."""

from functools import cached_property

import torch
from torch import Tensor, nn

from lullm.config.experts import ExpertsConfig
from lullm.nn.linear import FusedLinear, Linear, meta_parameter
from lullm.nn.mlp import GatedMLP
from lullm.ops.experts.routing import Routes
from lullm.ops.experts.weights import ExpertWeights, Matrices
from lullm.ops.table import Ops
from lullm.types.arithmetic import Activation


class Gate(Linear):
    """A matrix with a row per choice, which is never quantized: a wrong digit here is another expert there."""

    def __init__(self, hidden_size: int, num_choices: int, dtype: torch.dtype, bias: bool = False):
        super().__init__(hidden_size, num_choices, bias, dtype)


class Router(Gate):
    """Chooses the experts of every token, and their shares."""

    def __init__(self, config: ExpertsConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__(hidden_size, config.num_experts, dtype, config.has_biases)
        self.config = config
        self.e_score_correction_bias: nn.Parameter | None = None
        if config.has_correction:
            self.e_score_correction_bias = meta_parameter((config.num_experts,), torch.float32)
        self.per_expert_scale = meta_parameter((config.num_experts,), torch.float32) if config.has_factors else None

    def choose(self, x: Tensor, ops: Ops) -> Routes:
        """Of `x [T, H]`."""
        return ops.route(self(x, ops), self.e_score_correction_bias, self.config, self.per_expert_scale)


class Expert(nn.Module):
    """The matrices of one expert, which `Ops.experts` multiplies beside those of the others."""

    def __init__(self, config: ExpertsConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        size, bias = config.intermediate_size, config.has_biases
        self.gate_up_proj = FusedLinear(hidden_size, (size, size), bias, dtype)
        self.down_proj = Linear(size, hidden_size, bias, dtype)


class Elsewhere(nn.Module):
    """An expert that another worker has."""


class MixtureOfExperts(nn.Module):
    """Router, experts, and maybe an expert that every token uses.

    Only experts that a token of the step has chosen are read.
    """

    def __init__(self, config: ExpertsConfig, hidden_size: int, activation: Activation, dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.activation: Activation = activation
        self.gate = Router(config, hidden_size, dtype)
        self.own = config.own or range(config.num_experts)
        self.experts = nn.ModuleList(
            Expert(config, hidden_size, dtype) if number in self.own else Elsewhere()
            for number in range(config.num_experts)
        )
        self.shared_expert: GatedMLP | None = None
        self.shared_expert_gate: Gate | None = None
        if config.shared_intermediate_size is not None:
            self.shared_expert = GatedMLP(hidden_size, config.shared_intermediate_size, activation, False, dtype)
            if config.shared_is_gated:
                self.shared_expert_gate = Gate(hidden_size, 1, dtype)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, H] -> [T, H]
        routes = self.gate.choose(x, ops)
        shared = None if self.shared_expert is None else self.shared_expert(x, ops)
        shared_gate = None if self.shared_expert_gate is None else self.shared_expert_gate(x, ops)
        return ops.experts(x, routes, self.weights, shared, shared_gate)

    @cached_property
    def weights(self) -> ExpertWeights:
        """The experts' matrices, once they have memory."""
        experts = [expert for expert in self.experts if isinstance(expert, Expert)]
        gate_ups, downs = [expert.gate_up_proj for expert in experts], [expert.down_proj for expert in experts]
        gate = self.config.clamped_gate or self.activation
        return ExpertWeights(_matrices(gate_ups), _matrices(downs), gate, self.own.start, len(self.experts))


def _matrices(layers: list[FusedLinear] | list[Linear]) -> Matrices:
    biases = [layer.bias for layer in layers if layer.bias is not None]
    return Matrices([layer.weight for layer in layers], biases or None, [layer.layout for layer in layers])
