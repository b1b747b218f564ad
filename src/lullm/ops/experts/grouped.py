"""The mixture of experts in torch, on any device: expert by expert, over the rows that chose it.

Reads only experts that have rows. A device waits here for the numbers of rows, so no graph can record it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lullm.ops.experts.routing import Routes
from lullm.ops.experts.weights import ExpertWeights, Matrices
from lullm.ops.quantized import expansion
from lullm.ops.quantized.weight import Layout

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
QuantizedLinear = Callable[[Tensor, Tensor, Layout, Tensor | None], Tensor]
Experts = Callable[[Tensor, Routes, ExpertWeights, Tensor | None, Tensor | None], Tensor]


def experts_over(linear: Linear, quantized_linear: QuantizedLinear = expansion.quantized_linear) -> Experts:
    """`Ops.experts` over the linear ops of the same table, with the same guarantees."""

    def multiply(x: Tensor, matrices: Matrices, expert: int) -> Tensor:
        weight, bias, layout = matrices.weights[expert], matrices.bias_of(expert), matrices.layouts[expert]
        if layout is None:
            return linear(x, weight, bias)
        return quantized_linear(x, weight, layout, bias)

    def experts(
        x: Tensor, routes: Routes, weights: ExpertWeights, shared: Tensor | None, shared_gate: Tensor | None
    ) -> Tensor:
        num_used = routes.experts.shape[1]
        weights.slots.count(routes.experts)
        slots = weights.slots.of_experts[routes.experts].flatten()
        order = slots.argsort(stable=True)  # [T * K]: by slot
        counts = slots.bincount(minlength=len(weights.slots)).tolist()
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert, places in enumerate(order.split(counts)[weights.own]):
            if len(places):
                rows = places // num_used
                part = multiply(weights.join(multiply(x[rows], weights.gate_up, expert)), weights.down, expert)
                total.index_add_(0, rows, part.float() * routes.shares.flatten()[places].unsqueeze(-1))
        if shared is not None:
            total += shared.float() * (1 if shared_gate is None else shared_gate.float().sigmoid())
        return total.to(x.dtype)

    return experts
