"""Products of heads with matrices of their own, in torch, on any device."""

import torch
from torch import Tensor


def multiply_heads(x: Tensor, weight: Tensor, num_kept: int) -> Tensor:
    """See `Ops.multiply_heads`."""
    size = weight.shape[2]
    products = torch.matmul(x[..., :size].transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)  # [T, H, out]
    return torch.cat((products, x[..., size : size + num_kept]), dim=-1) if num_kept else products
