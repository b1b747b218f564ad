"""Experts of a mixture: how many tokens have used each, and which worker has it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerExperts:
    """The experts of one layer, as a worker knows them.

    Args:
        load: by expert, how many tokens have used it.
        slots: by expert; each worker has `num_own` slots that follow each other, in rank order.
        form: how they lie in the worker's memory; empty: not all in one way.
    """

    layer: int
    load: tuple[int, ...]
    slots: tuple[int, ...]
    num_own: int
    form: str


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """What the experts of a model have had to do since the engine started, or since the load was last cleared.

    Attributes:
        tokens: by layer and expert: how many tokens have used it.
        workers: by layer and expert: which workers of the layer's stage have it. Without `enable_expert_parallel` each
            has a part of each expert, and they count as one.
    """

    tokens: Mapping[int, Sequence[int]]
    workers: Mapping[int, Sequence[Sequence[int]]]

    @property
    def balance(self) -> float:
        """The work of the mean worker by that of the busiest one, the mean over all layers that were used; 1 is even.

        vLLM logs the same as "balancedness".
        """
        found = [_balance_of(load, self.workers[layer]) for layer, load in self.tokens.items() if any(load)]
        return sum(found) / len(found) if found else 1.0


@dataclass(frozen=True, slots=True)
class ExpertMove:
    """What `rebalance_experts` has done. `num_moved`: experts; `before`, `after`: see `ExpertLoad.balance`."""

    num_moved: int
    before: float
    after: float
    seconds: float


def _balance_of(load: Sequence[int], workers: Sequence[Sequence[int]]) -> float:
    """Of one layer; see `ExpertLoad.balance`."""
    work: dict[int, float] = {}
    for tokens, having in zip(load, workers, strict=True):
        for worker in having:
            work[worker] = work.get(worker, 0.0) + tokens / len(having)
    return sum(work.values()) / len(work) / max(work.values())
