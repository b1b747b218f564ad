"""Adapters in the native library: one call for all rows and all adapters of a layer (see `recording`)."""

from torch import Tensor

from lullm.ops.cpu.native import DTYPES, with_whole_rows
from lullm.ops.cpu.recording import call
from lullm.ops.lora import masked
from lullm.ops.lora.weights import LoraWeights


def add_lora_(y: Tensor, x: Tensor, lora: LoraWeights) -> None:
    """See `Ops.add_lora_`. A row's sums have an order of their own, so its bits do not depend on the batch."""
    dtype = DTYPES.get(y.dtype)
    if dtype is None or not x.dtype == y.dtype == lora.a.dtype or y.stride(1) != 1:
        masked.add_lora_(y, x, lora)
        return
    x = with_whole_rows(x)
    tensors = x, y, lora.rows, lora.a, lora.b, lora.ranks, lora.sizes
    sizes = len(x), x.shape[1], y.shape[1], lora.num_places, len(lora.part_sizes), lora.max_rank
    call("lullm_add_lora", *tensors, x.stride(0), y.stride(0), *sizes, dtype)
