"""AltUp (https://arxiv.org/abs/2301.13310): several residual streams; a layer computes one and updates all of them.

Their coefficients are a few numbers per token. Torch joins the streams, so steps with them are not recorded.
"""

import torch
from torch import Tensor, nn

from lullm.config.decoder import AltUpConfig
from lullm.nn.experts import Gate
from lullm.nn.linear import Linear, meta_parameter
from lullm.nn.norm import RMSNorm
from lullm.ops.table import Ops

LEAST_SQUARE = 1e-5
"""Added to a mean square before a division by it."""


class AltUp(nn.Module):
    """The part of a layer before and after it computes the active one of A streams. T tokens of H elements.

    The weight of the router's norm includes the factor 1 / H.
    """

    def __init__(self, config: AltUpConfig, hidden_size: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.config = config
        count = config.num_streams
        self.router_norm = RMSNorm(hidden_size, eps, dtype)
        self.modality_router = Gate(hidden_size, count, dtype)
        self.prediction_coefs = Gate(count, count * count, dtype)
        self.correction_coefs = Gate(count, count, dtype)
        self.correct_output_scale = meta_parameter((hidden_size,), dtype)

    def predict(self, streams: Tensor, ops: Ops) -> Tensor:  # [T, A, H] -> [T, A, H]
        """Each stream plus a sum of all streams, by a matrix of the token."""
        count = self.config.num_streams
        matrices = self.prediction_coefs(self._routed(streams[:, self.config.active], ops), ops)
        return torch.baddbmm(streams, matrices.view(-1, count, count), streams)

    def correct_(self, predicted: Tensor, computed: Tensor, ops: Ops) -> Tensor:  # [T, A, H], [T, H] -> [T, H]
        """Update all streams in place by the layer's change of the active one. Returns the active one, scaled."""
        active = self.config.active
        factors = self.correction_coefs(self._routed(computed, ops), ops) + 1.0  # [T, A]
        change = computed - predicted[:, active]
        predicted.addcmul_(factors.unsqueeze(2), change.unsqueeze(1))
        return predicted[:, active] * (self.correct_output_scale if self.config.scales_active else 1.0)

    def _routed(self, x: Tensor, ops: Ops) -> Tensor:  # [T, H] -> [T, A]
        routed: Tensor = self.modality_router(self.router_norm(x.contiguous(), ops), ops)
        ops.soft_cap_(routed, 1.0)  # tanh
        return routed


class LearnedResidual(nn.Module):
    """`x + norm(right(left(x)))` through a narrow layer (LAuReL, https://arxiv.org/abs/2411.07501)."""

    def __init__(self, rank: int, hidden_size: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.linear_left = Linear(hidden_size, rank, False, dtype)
        self.linear_right = Linear(rank, hidden_size, False, dtype)
        self.post_laurel_norm = RMSNorm(hidden_size, eps, dtype)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, H] -> [T, H]
        y: Tensor = self.post_laurel_norm(self.linear_right(self.linear_left(x, ops), ops), ops)
        ops.add_(y, x)
        return y


class StreamProjections(nn.ModuleList):
    """A matrix for every stream after the first. Its results are scaled to the length of the first one's rows."""

    def __init__(self, num_streams: int, hidden_size: int, dtype: torch.dtype):
        super().__init__(Linear(hidden_size, hidden_size, False, dtype) for _ in range(1, num_streams))

    def spread(self, hidden: Tensor, ops: Ops) -> Tensor:  # [T, H] -> [T, A, H]
        """The initial values of all streams."""
        return torch.stack([hidden, *(_as_long_as(hidden, project(hidden, ops)) for project in self)], dim=1)

    def join(self, streams: Tensor, ops: Ops) -> Tensor:  # [T, A, H] -> [T, H]
        """The mean of all streams."""
        first, *others = (stream.contiguous() for stream in streams.unbind(1))
        parts = [first, *(_as_long_as(first, project(x, ops)) for project, x in zip(self, others, strict=True))]
        return torch.stack(parts).mean(0)


def _as_long_as(target: Tensor, x: Tensor) -> Tensor:  # [T, H] each
    length = target.float().square().mean(-1, keepdim=True).sqrt()
    own = x.float().square().mean(-1, keepdim=True).clamp(min=LEAST_SQUARE).sqrt()
    return (x * (length / own)).to(x.dtype)
