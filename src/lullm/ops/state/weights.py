"""The learned numbers of a recurrence per head or channel: how fast it forgets, and what passes it by."""

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
        most_beta: of a delta rule, factor on the sigmoids that say how much of a key's value is replaced.
    """

    a_log: Tensor
    dt_bias: Tensor
    skip: Tensor | None = None
    least_step: float = 0.0
    most_step: float = math.inf
    most_beta: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class UnitWeights:
    """Weights of gated linear units, all `[I]` float32. The softplus of `rate` is how fast a channel forgets at most.

    `input_bias` and `decay_bias` are added to the products of the two gates.
    """

    rate: Tensor
    input_bias: Tensor
    decay_bias: Tensor
