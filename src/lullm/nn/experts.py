"""Mixture of experts (https://arxiv.org/abs/2101.03961): a router chooses a few MLPs for every token."""

import torch
from torch import Tensor, nn

from lullm.config.experts import ExpertsConfig
from lullm.nn.linear import Linear, meta_parameter
from lullm.nn.mlp import ClampedMLP, GatedMLP
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

    def choose(self, x: Tensor, ops: Ops) -> tuple[Tensor, Tensor]:
        """Of `x [T, H]`: the experts `[T, K]` int64, in no order, and their shares `[T, K]` float32."""
        config = self.config
        products = self(x, ops).float()  # [T, E]
        scores = products.softmax(-1) if config.scoring == "softmax" else products.sigmoid()
        experts = self._for_choice(scores).topk(config.num_used, dim=-1).indices
        shares = scores.gather(1, experts)
        if config.normalizes:
            shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
        return experts, shares * config.scale

    def _for_choice(self, scores: Tensor) -> Tensor:
        """The scores that the choice goes by: corrected, and minus infinity outside the best groups."""
        config = self.config
        if self.e_score_correction_bias is not None:
            scores = scores + self.e_score_correction_bias
        if config.num_used_groups == config.num_groups:
            return scores
        groups = scores.unflatten(-1, (config.num_groups, -1))  # [T, G, E / G]
        best = groups.topk(2, dim=-1).values.sum(-1).topk(config.num_used_groups, dim=-1).indices
        is_best = torch.zeros(groups.shape[:2], dtype=torch.bool, device=scores.device).scatter_(1, best, True)
        return groups.masked_fill(~is_best.unsqueeze(-1), -torch.inf).flatten(1)


class MixtureOfExperts(nn.Module):
    """Router, experts, and maybe an expert that every token uses.

    Only experts that a token of the step has chosen are read. A token's result depends on the token alone: its experts
    are computed row by row, and summed in float32 in the order of their numbers.
    """

    def __init__(self, config: ExpertsConfig, hidden_size: int, activation: Activation, dtype: torch.dtype):
        super().__init__()
        self.gate = Router(config, hidden_size, dtype)
        self.experts = nn.ModuleList(
            _new_expert(config, hidden_size, activation, dtype) for _ in range(config.num_experts)
        )
        self.shared_expert: GatedMLP | None = None
        self.shared_expert_gate: Gate | None = None
        if config.shared_intermediate_size is not None:
            self.shared_expert = GatedMLP(hidden_size, config.shared_intermediate_size, activation, False, dtype)
            if config.shared_is_gated:
                self.shared_expert_gate = Gate(hidden_size, 1, dtype)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, H] -> [T, H]
        experts, shares = self.gate.choose(x, ops)
        num_used = experts.shape[1]
        order = experts.flatten().argsort(stable=True)  # [T * K]: by expert
        counts = experts.flatten().bincount(minlength=len(self.experts)).tolist()
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        places = iter(order.split([count for count in counts if count]))
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                place = next(places)
                rows = place // num_used
                part = expert(x[rows], ops).float() * shares.flatten()[place].unsqueeze(-1)
                total.index_add_(0, rows, part)
        if self.shared_expert is not None:
            total += self._share(x, ops)
        return total.to(x.dtype)

    def _share(self, x: Tensor, ops: Ops) -> Tensor:
        assert self.shared_expert is not None, "asked for where there is one"
        shared: Tensor = self.shared_expert(x, ops).float()
        if self.shared_expert_gate is not None:
            shared = shared * self.shared_expert_gate(x, ops).float().sigmoid()
        return shared


def _new_expert(config: ExpertsConfig, hidden_size: int, activation: Activation, dtype: torch.dtype) -> nn.Module:
    sizes, gate = (hidden_size, config.intermediate_size), config.clamped_gate
    if gate is not None:
        return ClampedMLP(*sizes, gate, config.has_biases, dtype)
    return GatedMLP(*sizes, activation, config.has_biases, dtype)
