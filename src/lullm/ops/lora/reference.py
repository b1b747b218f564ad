"""The definition of adapters, row by row, float32 inside."""

from torch import Tensor

from lullm.ops.lora.weights import LoraWeights


def add_lora_(y: Tensor, x: Tensor, lora: LoraWeights) -> None:
    for row, place in enumerate(lora.rows[: len(x)].tolist()):
        first = 0
        for part, size in enumerate(lora.part_sizes if place >= 0 else ()):
            rank, start, columns = int(lora.ranks[place, part]), part * lora.max_rank, slice(first, first + size)
            if rank:
                inner = lora.a[place, start : start + rank].float() @ x[row].float()
                added = inner @ lora.b[place, :rank, columns].float()
                y[row, columns] = (y[row, columns].float() + added).to(y.dtype)
            first += size
