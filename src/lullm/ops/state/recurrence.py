"""The recurrence of gated delta nets and of Mamba 2, and the short convolution before it, in torch.

A head's state S `[Dk, Dv]` maps keys to values. A token first lets all of it decay:

    S <- exp(g) S
    S <- S + k v^T                        state spaces (Mamba 2, https://arxiv.org/abs/2405.21060)
    S <- S + k (beta (v - S^T k))^T       the gated delta rule (https://arxiv.org/abs/2412.06464): what S has for k is
                                          replaced, as far as beta says
    out = S^T q

One token costs a pass over S. So many tokens are computed in chunks: what the tokens of a chunk add is known together
(of the delta rule by a triangular system, the paper's section 3.3), and the state before the chunk is read once. Both
forms are equal but for the order of sums.
"""

import torch
from torch import Tensor

from lullm.ops.state.layout import StateLayout

CHUNK = 64
"""Tokens of a chunk: the triangular system costs as much as the passes over a state of 128 x 128."""


def convolve(x: Tensor, weight: Tensor, tails: Tensor, layout: StateLayout) -> Tensor:
    """x `[T, C]`, weight `[C, K]` float32, tails `[S, K - 1, C]`: moved on -> `[T, C]` float32."""
    num_before = tails.shape[1]
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    if layout.is_decode:
        seen = torch.cat([tails, x[: layout.num_spans, None].float()], dim=1)  # [S, K, C]
        products = (seen[:, i] * weight[:, i] for i in range(1, num_before + 1))
        out[: layout.num_spans] = sum(products, seen[:, 0] * weight[:, 0])
        tails.copy_(seen[:, 1:])
        return out
    for rows, tail in zip(layout.rows, tails, strict=True):
        seen = torch.cat([tail, x[rows].float()])  # [K - 1 + N, C]
        num_tokens = rows.stop - rows.start
        summed = seen[:num_tokens] * weight[:, 0]
        for i in range(1, num_before + 1):
            summed += seen[i : i + num_tokens] * weight[:, i]
        out[rows] = summed
        tail.copy_(seen[num_tokens:])
    return out


def scan(
    q: Tensor, k: Tensor, v: Tensor, decays: Tensor, betas: Tensor | None, states: Tensor, layout: StateLayout
) -> Tensor:
    """q, k `[T, H, Dk]`, v `[T, H, Dv]`, decays, betas `[T, H]`, states `[S, H, Dk, Dv]`: moved on -> `[T, H, Dv]`.

    All float32. betas None: a state space. Decays may be `[T, H, Dk]`; then tokens come one after the other.
    """
    out = torch.zeros(v.shape, dtype=torch.float32, device=v.device)
    inputs = [q, k, v, decays, *([] if betas is None else [betas])]
    if layout.is_decode:
        num = layout.num_spans
        out[:num] = _next_tokens(*[given[:num] for given in inputs], states=states)
        return out
    singles = [span for span, rows in enumerate(layout.rows) if rows.stop - rows.start == 1]
    if singles:  # decodes beside a prompt: together, as without it
        spans = torch.tensor(singles, device=v.device)
        at, own = torch.tensor([layout.rows[span].start for span in singles], device=v.device), states[spans]
        out[at] = _next_tokens(*[given[at] for given in inputs], states=own)
        states[spans] = own
    for rows, state in zip(layout.rows, states, strict=True):
        if rows.stop - rows.start == 1:
            continue
        size = CHUNK if decays.dim() == 2 else 1
        for first in range(rows.start, rows.stop, size):
            part = slice(first, min(first + size, rows.stop))
            if part.stop - part.start == 1:
                out[part] = _next_tokens(*[given[part] for given in inputs], states=state.unsqueeze(0))
            else:
                heads = [given[part].transpose(0, 1) for given in inputs]  # [H, N, ...] each
                out[part] = _next_chunk(*heads, state=state).transpose(0, 1)
    return out


def select(x: Tensor, b: Tensor, c: Tensor, dt: Tensor, rates: Tensor, states: Tensor, layout: StateLayout) -> Tensor:
    """Mamba 1's selective scan (https://arxiv.org/abs/2312.00752): every element of a state decays at its own rate.

    x, dt `[T, I]`, b, c `[T, N]`, rates `[N, I]`, states `[S, N, I]`: moved on -> `[T, I]`. All float32.

        S <- exp(dt rates) S + b (dt x)^T
        out = S^T c
    """
    out = torch.zeros_like(x)
    steps = [(slice(None), slice(layout.num_spans))]  # (sequences, a row of each)
    if not layout.is_decode:
        spans = [(slice(span, span + 1), rows) for span, rows in enumerate(layout.rows)]
        steps = [(span, slice(row, row + 1)) for span, rows in spans for row in range(rows.start, rows.stop)]
    for span, at in steps:
        step = dt[at].unsqueeze(1)  # [S, 1, I]
        states[span] = (step * rates).exp() * states[span] + b[at].unsqueeze(-1) * (step * x[at].unsqueeze(1))
        out[at] = (c[at].unsqueeze(1) @ states[span]).squeeze(1)
    return out


def _next_tokens(
    q: Tensor, k: Tensor, v: Tensor, decays: Tensor, betas: Tensor | None = None, *, states: Tensor
) -> Tensor:
    """One token of each sequence: q, k `[S, H, Dk]`, v `[S, H, Dv]`, decays, betas `[S, H]` -> `[S, H, Dv]`."""
    states *= decays.exp().unflatten(1, (q.shape[1], 1) if decays.dim() == 2 else (q.shape[1],)).unsqueeze(-1)
    if betas is not None:
        held = (k.unsqueeze(-2) @ states).squeeze(-2)  # [S, H, Dv]
        v = (v - held) * betas.unsqueeze(-1)
    states += k.unsqueeze(-1) * v.unsqueeze(-2)
    return (q.unsqueeze(-2) @ states).squeeze(-2)


def _next_chunk(
    q: Tensor, k: Tensor, v: Tensor, decays: Tensor, betas: Tensor | None = None, *, state: Tensor
) -> Tensor:
    """N tokens of a sequence: q, k `[H, N, Dk]`, v `[H, N, Dv]`, decays, betas `[H, N]` -> `[H, N, Dv]`."""
    passed = decays.cumsum(dim=1)  # logarithm of the decay from the chunk's start to each token
    is_later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
    between = (passed.unsqueeze(2) - passed.unsqueeze(1)).masked_fill(is_later, -torch.inf).exp()  # [H, N, N]
    if betas is not None:
        k_beta = k * betas.unsqueeze(-1)
        # A token's change depends on those before it: (1 + L) changes = beta (v - decayed S^T k), L below the diagonal.
        system = (k_beta @ k.transpose(1, 2)) * between
        wanted = v * betas.unsqueeze(-1) - (k_beta * passed.exp().unsqueeze(-1)) @ state
        v = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)  # [H, N, Dv]
    out = (q * passed.exp().unsqueeze(-1)) @ state + ((q @ k.transpose(1, 2)) * between) @ v
    to_end = (passed[:, -1:] - passed).exp()
    state *= passed[:, -1].exp()[:, None, None]
    state += (k * to_end.unsqueeze(-1)).transpose(1, 2) @ v
    return out


def unite(x: Tensor, passed: Tensor, states: Tensor, layout: StateLayout) -> Tensor:
    """Griffin's RG-LRU (https://arxiv.org/abs/2402.19427): x, passed `[T, I]`, states `[S, I]`: moved on -> `[T, I]`.

        s <- exp(passed) s + sqrt(1 - exp(2 passed)) x

    All float32. A sequence's first token is written as it is.
    """
    decays, written = passed.exp(), (1 - (2 * passed).exp()).sqrt() * x
    out = torch.zeros_like(x)
    if layout.is_decode:
        num, is_first = layout.num_spans, layout.is_first.unsqueeze(1)
        states.copy_(torch.where(is_first, x[:num], decays[:num] * states + written[:num]))
        out[:num] = states
        return out
    for rows, state, is_first in zip(layout.rows, states, layout.is_first.tolist(), strict=True):
        own, added = decays[rows].clone(), written[rows].clone()  # [N, I] each
        if is_first:
            added[0] = x[rows.start]
        else:
            added[0] += own[0] * state
        shift = 1  # what a token sees doubles in every round
        while shift < len(own):
            added[shift:] = added[shift:] + own[shift:] * added[:-shift]
            own[shift:] = own[shift:] * own[:-shift]
            shift *= 2
        out[rows] = added
        state.copy_(added[-1])
    return out
