"""DisentangledConfig: the numbers of attention by content and by distance apart (DeBERTa)."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

from lullm.types.arithmetic import Activation

DistanceScore = Literal["c2p", "p2c"]
"""`c2p`: a query times the key of a distance. `p2c`: a key times the query of a distance."""


@dataclass(frozen=True, slots=True)
class DisentangledConfig:
    """Distances between tokens have learned rows, which attention projects as it does those of tokens
    (https://arxiv.org/abs/2006.03654).

    Args:
        num_distances: rows for distances to one side.
        num_exact: up to this distance each has a row of its own; from there on a row stands for more and more of them
            (https://arxiv.org/abs/2111.09543). farthest: the distance of the last row.
        scores: what is added to the products of queries and keys.
        is_shared: the matrices of tokens project the rows of distances; if False, there are others for them.
        norms_rows: a norm comes before that.
        width: tokens that a convolution behind the first layer sees, 0: there is none. activation: behind it.
    """

    num_distances: int
    num_exact: int
    farthest: int
    scores: Set[DistanceScore]
    is_shared: bool
    norms_rows: bool
    width: int
    activation: Activation
