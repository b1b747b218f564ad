"""DecayWeights: the learned numbers per head of a recurrence: how fast it forgets, and what passes it by."""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DecayWeights:
    """All `[H]` float32; of a selective scan by channel.

    Args:
        a_log: logarithm of the rate of decay; of a selective scan `[I, N]`, by element of the state.
        dt_bias: added to a token's step size, before softplus.
        skip: of a state space: how much of a token's value reaches its own output directly.
        least_step, most_step: bounds of a state space's step sizes.
    """

    a_log: Tensor
    dt_bias: Tensor
    skip: Tensor | None = None
    least_step: float = 0.0
    most_step: float = math.inf
