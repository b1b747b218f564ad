"""Adapters in torch, on any device: the products of all places for all rows, of which a row keeps its own.

No step of it depends on which rows have which adapter, so that a GPU never waits and a graph may record it.
"""

import torch
from torch import Tensor

from lullm.ops.lora.weights import LoraWeights


def add_lora_(y: Tensor, x: Tensor, lora: LoraWeights) -> None:
    """See `Ops.add_lora_`."""
    rows = lora.rows[: len(x)]
    if rows.device.type == "cpu" and not bool((rows >= 0).any()):
        return
    inner = (x @ lora.a.flatten(0, 1).T).view(len(x), lora.num_places, len(lora.part_sizes), lora.max_rank)
    is_own = rows.unsqueeze(1) == torch.arange(lora.num_places, device=rows.device)  # [T, P]
    inner = torch.where(is_own[:, :, None, None], inner, torch.zeros((), dtype=inner.dtype, device=inner.device))
    first = 0
    for part, size in enumerate(lora.part_sizes):
        b = lora.b[:, :, first : first + size].flatten(0, 1)  # [P * R, size]
        y[:, first : first + size] += inner[:, :, part].flatten(1) @ b
        first += size
