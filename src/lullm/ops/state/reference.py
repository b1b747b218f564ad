"""The golden versions: one token after the other, in the plainest torch. See `delta_rule` for the formulas."""

import torch
from torch import Tensor
from torch.nn.functional import normalize, silu

from lullm.ops.state.layout import StateLayout


def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, tails: Tensor, layout: StateLayout) -> Tensor:
    """See `Ops.causal_convolution`."""
    out = torch.zeros_like(x)
    for rows, tail in zip(layout.rows(), tails, strict=True):
        for row in range(rows.start, rows.stop):
            seen = torch.cat([tail, x[row : row + 1].float()])  # [K, C]
            summed = (seen * weight.float().t()).sum(dim=0)
            out[row] = silu(summed if bias is None else summed + bias.float())
            tail.copy_(seen[1:])
    return out


def gated_delta_rule(
    qk: Tensor, v: Tensor, decays: Tensor, betas: Tensor, states: Tensor, layout: StateLayout
) -> Tensor:
    """See `Ops.gated_delta_rule`."""
    q, k = qk.chunk(2, dim=1)  # [T, Hk, Dk] each
    num_heads, num_repeats = v.shape[1], v.shape[1] // k.shape[1]
    out = torch.zeros(v.shape, dtype=torch.float32, device=v.device)
    for rows, state in zip(layout.rows(), states, strict=True):
        for row in range(rows.start, rows.stop):
            for head in range(num_heads):
                key = _unit(k[row, head // num_repeats])
                query = _unit(q[row, head // num_repeats]) * q.shape[-1] ** -0.5
                own = state[head] * decays[row, head].exp()
                own += torch.outer(key, betas[row, head] * (v[row, head].float() - own.t() @ key))
                out[row, head] = own.t() @ query
                state[head] = own
    return out


def _unit(x: Tensor) -> Tensor:
    """A vector of length 1; the small constant under the root is the models' own."""
    return normalize(torch.cat([x.float(), torch.full((1,), 1e-3, device=x.device)]), dim=0)[:-1]
