"""The golden mixture of experts: token by token, expert by expert."""

import torch
from torch import Tensor

from lullm.ops import reference
from lullm.ops.experts.routing import Routes
from lullm.ops.experts.weights import ExpertWeights, Matrices
from lullm.ops.quantized import reference as quantized_reference


def experts(
    x: Tensor, routes: Routes, weights: ExpertWeights, shared: Tensor | None, shared_gate: Tensor | None
) -> Tensor:
    weights.slots.count(routes.experts)
    totals = []
    for row in range(len(x)):
        total = torch.zeros(x.shape[1], dtype=torch.float32, device=x.device)
        for number, share in zip(routes.experts[row].tolist(), routes.shares[row], strict=True):
            expert = int(weights.slots.of_experts[number]) - weights.slots.first
            if not 0 <= expert < len(weights.down.weights):
                continue
            gated = weights.join(_multiply(x[row : row + 1], weights.gate_up, expert))
            total += _multiply(gated, weights.down, expert)[0].float() * share
        if shared is not None:
            total += shared[row].float() * (1 if shared_gate is None else shared_gate[row].float().sigmoid())
        totals.append(total)
    return torch.stack(totals).to(x.dtype) if totals else torch.empty_like(x)


def _multiply(x: Tensor, matrices: Matrices, expert: int) -> Tensor:
    weight, bias, layout = matrices.weights[expert], matrices.bias_of(expert), matrices.layouts[expert]
    if layout is None:
        return reference.linear(x, weight, bias)
    return quantized_reference.quantized_linear(x, weight, layout, bias)
