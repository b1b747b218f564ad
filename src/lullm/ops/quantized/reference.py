"""The golden ops over quantized weights: dequantize the weights and call the golden ops."""

import torch
from torch import Tensor

from lullm.ops import reference
from lullm.ops.quantized.weight import Layout, dequantize
from lullm.types.arithmetic import Activation


def quantized_embedding(token_ids: Tensor, weight: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    return layout.decode_rows(weight, token_ids).to(dtype)


def quantized_linear(x: Tensor, weight: Tensor, layout: Layout, bias: Tensor | None) -> Tensor:
    return reference.linear(x, dequantize(weight, layout), bias)


def quantized_logits(x: Tensor, weight: Tensor, layout: Layout) -> Tensor:
    return reference.logits(x, dequantize(weight, layout))


def quantized_gated_linear(
    x: Tensor, weight: Tensor, layout: Layout, bias: Tensor | None, activation: Activation
) -> Tensor:
    return reference.gated_linear(x, dequantize(weight, layout), bias, activation)
