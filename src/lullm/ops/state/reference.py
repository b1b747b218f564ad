"""The golden versions: one token after the other, in the plainest torch. See `recurrence` for the formulas."""

import torch
from torch import Tensor

from lullm.ops.state.layout import StateLayout


def convolve(x: Tensor, weight: Tensor, tails: Tensor, layout: StateLayout) -> Tensor:
    """See `recurrence.convolve`."""
    out = torch.zeros(x.shape, dtype=torch.float32)
    for rows, tail in zip(layout.rows, tails, strict=True):
        for row in range(rows.start, rows.stop):
            seen = torch.cat([tail, x[row : row + 1].float()])  # [K, C]
            out[row] = (seen * weight.t()).sum(dim=0)
            tail.copy_(seen[1:])
    return out


def scan(
    q: Tensor, k: Tensor, v: Tensor, decays: Tensor, betas: Tensor | None, states: Tensor, layout: StateLayout
) -> Tensor:
    """See `recurrence.scan`."""
    out = torch.zeros(v.shape)
    for rows, state in zip(layout.rows, states, strict=True):
        for row in range(rows.start, rows.stop):
            for head in range(v.shape[1]):
                own, key, value = state[head] * decays[row, head].exp().view(-1, 1), k[row, head], v[row, head]
                if betas is not None:
                    value = betas[row, head] * (value - own.t() @ key)
                own = own + torch.outer(key, value)
                out[row, head] = own.t() @ q[row, head]
                state[head] = own
    return out


def select(x: Tensor, b: Tensor, c: Tensor, dt: Tensor, rates: Tensor, states: Tensor, layout: StateLayout) -> Tensor:
    """See `recurrence.select`."""
    out = torch.zeros_like(x)
    for rows, state in zip(layout.rows, states, strict=True):
        for row in range(rows.start, rows.stop):
            state.mul_((rates * dt[row]).exp()).add_(torch.outer(b[row], dt[row] * x[row]))
            out[row] = state.t() @ c[row]
    return out


def unite(x: Tensor, passed: Tensor, states: Tensor, layout: StateLayout) -> Tensor:
    """See `recurrence.unite`."""
    out = torch.zeros_like(x)
    for rows, state, is_first in zip(layout.rows, states, layout.is_first, strict=True):
        for row in range(rows.start, rows.stop):
            decay = passed[row].exp()
            if is_first and row == rows.start:
                state.copy_(x[row])
            else:
                state.mul_(decay).add_((1 - decay * decay).sqrt() * x[row])
            out[row] = state
    return out
