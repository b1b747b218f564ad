"""Mixture of experts (https://arxiv.org/abs/2101.03961): a router chooses a few MLPs for every token."""

from functools import cached_property

import torch
from torch import Tensor, nn

from lullm.config.layer.experts import ExpertsConfig
from lullm.nn.linear import FusedLinear, Linear, meta_parameter
from lullm.nn.mlp import MLP, GatedMLP
from lullm.ops.experts.routing import Routes
from lullm.ops.experts.weights import ExpertSlots, ExpertWeights, Matrices
from lullm.ops.table import Ops
from lullm.types.arithmetic import Activation


class Gate(Linear):
    """A matrix with a row per choice, which is never quantized: a small error here selects another expert."""

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
        """Choose for `x [T, H]`."""
        return ops.route(self(x, ops), self.e_score_correction_bias, self.config, self.per_expert_scale)


class Expert(nn.Module):
    """The matrices of one expert. `Ops.experts` multiplies all experts' matrices together.

    Experts without gates have only the ups in `gate_up_proj`.
    """

    def __init__(self, config: ExpertsConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        size, bias = config.intermediate_size, config.has_biases
        self.gate_up_proj = FusedLinear(hidden_size, (size, size) if config.is_gated else (size,), bias, dtype)
        self.down_proj = Linear(size, hidden_size, bias, dtype)


class Elsewhere(nn.Module):
    """The place of an expert that another worker has."""


class MixtureOfExperts(nn.Module):
    """Router, experts, and maybe a shared expert that every token uses.

    Reads only experts that a token of the step has chosen.
    """

    slot_of_expert: Tensor
    load: Tensor

    def __init__(self, config: ExpertsConfig, hidden_size: int, activation: Activation, dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.activation: Activation = activation
        self.gate = Router(config, hidden_size, dtype)
        own = config.own or range(config.num_experts)
        slots = ExpertSlots.in_order(config.num_experts, own.start)
        self.register_buffer("slot_of_expert", slots.of_experts, persistent=False)
        self.register_buffer("load", slots.load, persistent=False)
        self._first_slot = own.start
        latent_size = config.latent_size or hidden_size
        self.in_slots = [Expert(config, latent_size, dtype) for _ in own]  # of this worker
        self.experts = nn.ModuleList(
            self.in_slots[number - own.start] if number in own else Elsewhere() for number in range(config.num_experts)
        )
        self.shared_expert: GatedMLP | MLP | None = None
        self.shared_expert_gate: Gate | None = None
        if config.shared_intermediate_size is not None:
            make = GatedMLP if config.is_gated else MLP
            sizes = hidden_size, config.shared_intermediate_size
            self.shared_expert = make(*sizes, activation, config.has_shared_biases, dtype)
            if config.shared_is_gated:
                self.shared_expert_gate = Gate(hidden_size, 1, dtype)
        self.latent_in = self.latent_out = None
        if config.latent_size is not None:
            self.latent_in = Linear(hidden_size, latent_size, False, dtype)
            self.latent_out = Linear(latent_size, hidden_size, False, dtype)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, H] -> [T, H]
        routes = self.gate.choose(x, ops)
        shared = None if self.shared_expert is None else self.shared_expert(x, ops)
        shared_gate = None if self.shared_expert_gate is None else self.shared_expert_gate(x, ops)
        if self.config.scales_inputs:
            return self._of_scaled(x, routes, shared, ops)
        if self.latent_in is None or self.latent_out is None:
            return ops.experts(x, routes, self.weights, shared, shared_gate)
        assert shared_gate is None, "no family has a gate beside projections"
        # Workers that share the experts each project their part of the sum.
        y = self.latent_out(ops.experts(self.latent_in(x, ops), routes, self.weights, None, None), ops)
        if shared is not None:
            ops.add_(y, shared)
        return y

    def _of_scaled(self, x: Tensor, routes: Routes, shared: Tensor | None, ops: Ops) -> Tensor:
        """For shares that multiply the experts' inputs: a row occurs once for each of its experts."""
        experts, shares = routes
        rows = (x.unsqueeze(1) * shares.unsqueeze(-1).to(x.dtype)).flatten(0, 1)  # [T * K, H]
        each = Routes(experts.reshape(-1, 1), torch.ones_like(shares).reshape(-1, 1))
        y = ops.experts(rows, each, self.weights, None, None).unflatten(0, experts.shape).sum(1)
        if shared is not None:
            ops.add_(y, shared)
        return y

    @cached_property
    def weights(self) -> ExpertWeights:
        """The experts' matrices, once they have memory."""
        gate_ups = [expert.gate_up_proj for expert in self.in_slots]
        downs = [expert.down_proj for expert in self.in_slots]
        gate = self.config.clamped_gate or self.activation
        return ExpertWeights(_matrices(gate_ups), _matrices(downs), gate, self.slots, self.config.is_gated)

    @property
    def slots(self) -> ExpertSlots:
        """The places of all experts."""
        return ExpertSlots(self.slot_of_expert, self.load, self._first_slot)

    @cached_property
    def form(self) -> str:
        """The layout of an expert in memory; an expert of the same layout can take its place.

        Empty: the experts here do not all have the same layout, or have no memory yet.
        """
        forms = {
            str([(last, list(p.shape), str(p.dtype)) for last, p in expert.named_parameters()])
            + str((expert.gate_up_proj.layout, expert.down_proj.layout))
            for expert in self.in_slots
        }
        return forms.pop() if len(forms) == 1 else ""

    def swap_names(self, slot: int, other: int) -> None:
        """The experts of two slots have changed places: exchange the names of their modules."""
        experts = self.slots.of_experts.argsort()  # by slot
        first, second = int(experts[slot]), int(experts[other])
        self.slots.of_experts[first], self.slots.of_experts[second] = other, slot
        self.experts[first], self.experts[second] = self.experts[second], self.experts[first]


def _matrices(layers: list[FusedLinear] | list[Linear]) -> Matrices:
    biases = [layer.bias for layer in layers if layer.bias is not None]
    return Matrices([layer.weight for layer in layers], biases or None, [layer.layout for layer in layers])
