"""The ops over quantized weights in torch, on any device: weights are expanded slab by slab, to bound the memory.

This saves memory, not time: expanding costs more than reading 16 bits would.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from lullm.ops.activation import gate
from lullm.ops.quantized.weight import PANEL_ROWS, Layout, dequantize
from lullm.types.arithmetic import Activation
from lullm.units import round_up

_SLAB_WEIGHTS = 1 << 21


def quantized_embedding(token_ids: Tensor, weight: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    return layout.decode_rows(weight, token_ids).to(dtype)


def quantized_linear(x: Tensor, weight: Tensor, layout: Layout, bias: Tensor | None) -> Tensor:
    # In float32, whatever x is: a matrix expands to float32 anyway, and all processors compute in it.
    rows = x.float()
    slab = round_up(max(1, _SLAB_WEIGHTS // layout.in_features), PANEL_ROWS)
    parts = []
    for first in range(0, layout.out_features, slab):
        last = min(first + slab, layout.out_features)
        part_bias = None if bias is None else bias[first:last].float()
        parts.append(F.linear(rows, dequantize(weight, layout, first, last), part_bias).to(x.dtype))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def quantized_logits(x: Tensor, weight: Tensor, layout: Layout) -> Tensor:
    return quantized_linear(x.float(), weight, layout, None)


def quantized_gated_linear(
    x: Tensor, weight: Tensor, layout: Layout, bias: Tensor | None, activation: Activation
) -> Tensor:
    return gate(quantized_linear(x, weight, layout, bias), activation)
