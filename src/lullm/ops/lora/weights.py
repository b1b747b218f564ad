"""LoraWeights: the adapters of one linear layer, in places beside each other, at fixed addresses."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LoraWeights:
    """P places with an adapter each, of a layer whose outputs are those of C parts, one after the other.

    An adapter of a part adds `b @ (a @ x)` to its outputs. Elements behind a part's rank are 0.

    Args:
        a: `[P, C * R, in]`, part by part.
        b: `[P, R, out]`, transposed: each part has its columns. With the adapter's factor.
        ranks: `[P, C]` int64, on the host, at most R; 0: no adapter of this part.
        rows: int64, longer than any step: the place of each of the step's rows; below 0: no adapter.
        part_sizes: outputs of each part.
    """

    a: Tensor
    b: Tensor
    ranks: Tensor
    rows: Tensor
    part_sizes: tuple[int, ...]
    sizes: Tensor = field(init=False)  # the same for a native call

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", torch.tensor(self.part_sizes, dtype=torch.int64, device="cpu"))

    @property
    def num_places(self) -> int:
        return self.b.shape[0]

    @property
    def max_rank(self) -> int:
        return self.b.shape[1]
