"""The ops of recurrent layers in torch: what stands around the sums of `recurrence` or of the golden version."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from lullm.ops.state.layout import LayerState, StateLayout
from lullm.ops.state.weights import DecayWeights, UnitWeights

Convolve = Callable[[Tensor, Tensor, Tensor, StateLayout], Tensor]
Scan = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor, StateLayout], Tensor]
Select = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, StateLayout], Tensor]
Unite = Callable[[Tensor, Tensor, Tensor, StateLayout], Tensor]
NORM_EPS = 1e-6
UNIT_EXPONENT = 8.0
"""Griffin's c: how much of a channel's rate an open gate lets pass."""


def causal_convolution_over(convolve: Convolve) -> Callable[[Tensor, Tensor, Tensor | None, bool, LayerState], Tensor]:
    """`Ops.causal_convolution` with these sums."""

    def causal_convolution(
        x: Tensor, weight: Tensor, bias: Tensor | None, activates: bool, state: LayerState
    ) -> Tensor:
        tails = state.read(0)
        summed = convolve(x, weight.float(), tails, state.layout)
        state.write(0, tails)
        if bias is not None:
            summed += bias.float()
        return (silu(summed) if activates else summed).to(x.dtype)

    return causal_convolution


def gated_delta_rule_over(scan: Scan) -> Callable[[Tensor, Tensor, Tensor, DecayWeights, LayerState], Tensor]:
    """`Ops.gated_delta_rule` with these sums."""

    def gated_delta_rule(qk: Tensor, v: Tensor, sizes: Tensor, weights: DecayWeights, state: LayerState) -> Tensor:
        q, k = qk.chunk(2, dim=1)  # [T, Hk, Dk] each
        num_heads = v.shape[1]
        b, a = sizes.float().split((num_heads, sizes.shape[1] - num_heads), dim=-1)  # [T, Hv], [T, Hv] or [T, Hv * Dk]
        num_repeats = v.shape[1] // k.shape[1]
        q = _normed(q).repeat_interleave(num_repeats, dim=1) * q.shape[-1] ** -0.5  # [T, Hv, Dk]
        k = _normed(k).repeat_interleave(num_repeats, dim=1)
        steps, rates = softplus(a + weights.dt_bias), weights.a_log.exp()
        if a.shape[1] != num_heads:
            steps, rates = steps.unflatten(-1, (num_heads, -1)), rates.unsqueeze(-1)
        states = state.read(1)
        out = scan(q, k, v.float(), -rates * steps, b.sigmoid() * weights.most_beta, states, state.layout)
        state.write(1, states)
        return out.to(v.dtype)

    return gated_delta_rule


def state_space_over(scan: Scan) -> Callable[[Tensor, Tensor, Tensor, DecayWeights, LayerState], Tensor]:
    """`Ops.state_space` with these sums."""

    def state_space(x: Tensor, bc: Tensor, dt: Tensor, weights: DecayWeights, state: LayerState) -> Tensor:
        assert weights.skip is not None, "of a state space"
        b, c = bc.float().chunk(2, dim=1)  # [T, G, N] each
        num_repeats = x.shape[1] // b.shape[1]
        b, c = b.repeat_interleave(num_repeats, dim=1), c.repeat_interleave(num_repeats, dim=1)  # [T, H, N]
        dt = softplus(dt.float() + weights.dt_bias).clamp(weights.least_step, weights.most_step)
        states, values = state.read(1), x.float()
        out = scan(c, b, values * dt.unsqueeze(-1), -weights.a_log.exp() * dt, None, states, state.layout)
        state.write(1, states)
        return (out + values * weights.skip.unsqueeze(-1)).to(x.dtype)

    return state_space


def selective_scan_over(select: Select) -> Callable[[Tensor, Tensor, Tensor, DecayWeights, LayerState], Tensor]:
    """`Ops.selective_scan` with these sums."""

    def selective_scan(x: Tensor, bc: Tensor, dt: Tensor, weights: DecayWeights, state: LayerState) -> Tensor:
        assert weights.skip is not None, "of a state space"
        b, c = bc.float().chunk(2, dim=1)  # [T, N] each
        states, values, steps = state.read(1), x.float(), softplus(dt.float() + weights.dt_bias)
        out = select(values, b, c, steps, -weights.a_log.t().exp(), states, state.layout)
        state.write(1, states)
        return (out + values * weights.skip).to(x.dtype)

    return selective_scan


def rg_lru_over(unite: Unite) -> Callable[[Tensor, Tensor, Tensor, UnitWeights, LayerState], Tensor]:
    """`Ops.rg_lru` with these sums."""

    def rg_lru(x: Tensor, inputs: Tensor, decays: Tensor, weights: UnitWeights, state: LayerState) -> Tensor:
        gate = (decays.float() + weights.decay_bias).sigmoid()
        passed = -UNIT_EXPONENT * softplus(weights.rate) * gate  # logarithm of the decay
        written = x.float() * (inputs.float() + weights.input_bias).sigmoid()
        states = state.read(1)
        out = unite(written, passed, states, state.layout)
        state.write(1, states)
        return out.to(x.dtype)

    return rg_lru


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, gates_first: bool) -> Tensor:
    """See `Ops.gated_rms_norm`."""
    values, factor = x.float(), silu(gate.float()).view(x.shape)
    if gates_first:
        values = values * factor
    normed = values * torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + eps)
    normed = normed.to(x.dtype) * weight.view(-1, x.shape[-1])
    return (normed if gates_first else (normed * factor).to(x.dtype)).flatten(1)


def _normed(x: Tensor) -> Tensor:
    """Heads of length 1, float32."""
    x = x.float()
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + NORM_EPS)
