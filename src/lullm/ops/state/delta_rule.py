"""The gated delta rule (Gated Delta Networks, https://arxiv.org/abs/2412.06464) and the short convolution before it.

A head's state S `[Dk, Dv]` maps keys to values. A token first lets all of it decay, then replaces what S has for its
key k by its value v, as far as beta says:

    S <- exp(g) S
    S <- S + k (beta (v - S^T k))^T
    out = S^T q

One token costs a pass over S. So many tokens are computed in chunks: what the tokens of a chunk do to each other is a
triangular system, and the state before the chunk is read once (the paper's section 3.3). Both forms are equal but for
the order of sums.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu

from lullm.ops.state.layout import StateLayout

CHUNK = 64
"""Tokens of a chunk: the triangular system costs as much as the passes over a state of 128 x 128."""
NORM_EPS = 1e-6


def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, tails: Tensor, layout: StateLayout) -> Tensor:
    """See `Ops.causal_convolution`."""
    weight = weight.float()
    num_before = tails.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if layout.is_decode:
        seen = torch.cat([tails, x[: layout.num_spans, None].float()], dim=1)  # [S, K, C]
        summed = sum((seen[:, i] * weight[:, i] for i in range(1, num_before + 1)), seen[:, 0] * weight[:, 0])
        out[: layout.num_spans] = _activated(summed, bias).to(x.dtype)
        tails.copy_(seen[:, 1:])
        return out
    for rows, tail in zip(layout.rows(), tails, strict=True):
        seen = torch.cat([tail, x[rows].float()])  # [K - 1 + N, C]
        num_tokens = rows.stop - rows.start
        summed = seen[:num_tokens] * weight[:, 0]
        for i in range(1, num_before + 1):
            summed += seen[i : i + num_tokens] * weight[:, i]
        out[rows] = _activated(summed, bias).to(x.dtype)
        tail.copy_(seen[num_tokens:])
    return out


def _activated(summed: Tensor, bias: Tensor | None) -> Tensor:
    return silu(summed if bias is None else summed + bias.float())


def gated_delta_rule(
    qk: Tensor, v: Tensor, decays: Tensor, betas: Tensor, states: Tensor, layout: StateLayout
) -> Tensor:
    """See `Ops.gated_delta_rule`."""
    q, k = qk.chunk(2, dim=1)  # [T, Hk, Dk] each
    num_repeats = v.shape[1] // k.shape[1]
    q = _normed(q).repeat_interleave(num_repeats, dim=1) * q.shape[-1] ** -0.5  # [T, Hv, Dk]
    k = _normed(k).repeat_interleave(num_repeats, dim=1)
    v = v.float()
    out = torch.empty(v.shape, dtype=torch.float32, device=v.device)
    if layout.is_decode:
        num = layout.num_spans
        out[:num] = _next_tokens(q[:num], k[:num], v[:num], decays[:num], betas[:num], states)
        return out
    rows_of = layout.rows()
    singles = [span for span, rows in enumerate(rows_of) if rows.stop - rows.start == 1]
    if singles:  # decodes beside a prompt: together, as without it
        spans = torch.tensor(singles, device=v.device)
        at, own = torch.tensor([rows_of[span].start for span in singles], device=v.device), states[spans]
        out[at] = _next_tokens(q[at], k[at], v[at], decays[at], betas[at], own)
        states[spans] = own
    for rows, state in zip(rows_of, states, strict=True):
        if rows.stop - rows.start == 1:
            continue
        for first in range(rows.start, rows.stop, CHUNK):
            part = slice(first, min(first + CHUNK, rows.stop))
            if part.stop - part.start == 1:
                out[part] = _next_tokens(q[part], k[part], v[part], decays[part], betas[part], state.unsqueeze(0))
            else:
                heads = q[part].transpose(0, 1), k[part].transpose(0, 1), v[part].transpose(0, 1)  # [Hv, N, D] each
                out[part] = _next_chunk(*heads, decays[part].t(), betas[part].t(), state).transpose(0, 1)
    return out


def _normed(x: Tensor) -> Tensor:
    """Heads of length 1, float32."""
    x = x.float()
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + NORM_EPS)


def _next_tokens(q: Tensor, k: Tensor, v: Tensor, decays: Tensor, betas: Tensor, states: Tensor) -> Tensor:
    """One token of each sequence: q, k `[S, Hv, Dk]`, v `[S, Hv, Dv]`, decays, betas `[S, Hv]` -> `[S, Hv, Dv]`."""
    states *= decays.exp()[..., None, None]
    held = (k.unsqueeze(-2) @ states).squeeze(-2)  # [S, Hv, Dv]
    change = (v - held) * betas.unsqueeze(-1)
    states += k.unsqueeze(-1) * change.unsqueeze(-2)
    return (q.unsqueeze(-2) @ states).squeeze(-2)


def _next_chunk(q: Tensor, k: Tensor, v: Tensor, decays: Tensor, betas: Tensor, state: Tensor) -> Tensor:
    """N tokens of a sequence: q, k `[Hv, N, Dk]`, v `[Hv, N, Dv]`, decays, betas `[Hv, N]` -> `[Hv, N, Dv]`."""
    passed = decays.cumsum(dim=1)  # logarithm of the decay from the chunk's start to each token
    is_later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
    between = (passed.unsqueeze(2) - passed.unsqueeze(1)).masked_fill(is_later, -torch.inf).exp()  # [Hv, N, N]
    k_beta = k * betas.unsqueeze(-1)
    # A token's change depends on those before it: (1 + L) changes = beta (v - decayed S^T k), L below the diagonal.
    system = (k_beta @ k.transpose(1, 2)) * between
    wanted = v * betas.unsqueeze(-1) - (k_beta * passed.exp().unsqueeze(-1)) @ state
    changes = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)  # [Hv, N, Dv]
    out = (q * passed.exp().unsqueeze(-1)) @ state + ((q @ k.transpose(1, 2)) * between) @ changes
    to_end = (passed[:, -1:] - passed).exp()
    state *= passed[:, -1].exp()[:, None, None]
    state += (k * to_end.unsqueeze(-1)).transpose(1, 2) @ changes
    return out
