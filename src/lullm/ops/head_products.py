"""Products of heads with one matrix per head, and attention over latent vectors by them; in torch, on any device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lullm.ops.attention_layout import Attention, CausalScores
from lullm.ops.cache.layer_cache import LayerCache


def multiply_heads(x: Tensor, weight: Tensor, num_kept: int) -> Tensor:
    """See `Ops.multiply_heads`."""
    size = weight.shape[2]
    products = torch.matmul(x[..., :size].transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)  # [T, H, out]
    return torch.cat((products, x[..., size : size + num_kept]), dim=-1) if num_kept else products


@dataclass(frozen=True, slots=True, eq=False)
class LatentMatrices:
    """For every head, the matrices that make keys and values of a latent vector.

    Args:
        keys: `[Hq, plain_size, rank]`. A key is this product, followed by the rotated part of the row.
        values: `[Hq, value_size, rank]`.
    """

    keys: Tensor
    values: Tensor

    def of_heads(self, first: int, last: int) -> "LatentMatrices":
        return LatentMatrices(self.keys[first:last], self.values[first:last])


class AttendLatents(Protocol):
    """See `Ops.attend_latents`."""

    def __call__(
        self, q: Tensor, matrices: LatentMatrices, cache: LayerCache, prepared: Any, scores: CausalScores, /
    ) -> Tensor: ...


def absorbed_over(multiply_heads: Callable[[Tensor, Tensor, int], Tensor], attention: Attention) -> AttendLatents:
    """`Ops.attend_latents` by two other functions of a table: `q . (W l) = (W^T q) . l`.

    So a step reads one row of the cache per token, and scores take the products of a whole row.
    """

    def attend_latents(
        q: Tensor, matrices: LatentMatrices, cache: LayerCache, prepared: Any, scores: CausalScores
    ) -> Tensor:
        q = multiply_heads(q, matrices.keys.transpose(1, 2), q.shape[2] - matrices.keys.shape[1])  # [T, Hq, D]
        out = attention(q, cache, prepared, scores)  # [T, Hq, D], of which the first `rank` are of latents
        return multiply_heads(out, matrices.values, 0)  # [T, Hq, value_size]

    return attend_latents
