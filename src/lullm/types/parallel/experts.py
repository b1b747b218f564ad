"""Experts of a mixture: the tokens that have used each, and each expert's worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerExperts:
    """The experts of one layer, as a worker knows them.

    Args:
        load: by expert, the number of tokens that have used it.
        slots: by expert; each worker has `num_own` consecutive slots, in rank order.
        form: their layout in the worker's memory; empty: they do not all have the same.
    """

    layer: int
    load: tuple[int, ...]
    slots: tuple[int, ...]
    num_own: int
    form: str


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """The use of a model's experts since the engine started, or since the counts were last cleared.

    Attributes:
        tokens: by layer and expert: the number of tokens that have used it.
        workers: by layer and expert: its worker within the layer's stage. Without `enable_expert_parallel` each worker
            has a part of each expert, and they count as one.
    """

    tokens: Mapping[int, Sequence[int]]
    workers: Mapping[int, Sequence[Sequence[int]]]

    @property
    def balance(self) -> float:
        """The mean worker's load divided by the busiest one's, averaged over all layers in use; 1 is even.

        vLLM logs the same as "balancedness".
        """
        found = [_balance_of(load, self.workers[layer]) for layer, load in self.tokens.items() if any(load)]
        return sum(found) / len(found) if found else 1.0


@dataclass(frozen=True, slots=True)
class ExpertMove:
    """The result of `rebalance_experts`. `num_moved`: experts; `before`, `after`: see `ExpertLoad.balance`."""

    num_moved: int
    before: float
    after: float
    seconds: float


def _balance_of(load: Sequence[int], workers: Sequence[Sequence[int]]) -> float:
    """The balance of one layer; see `ExpertLoad.balance`."""
    work: dict[int, float] = {}
    for tokens, having in zip(load, workers, strict=True):
        for worker in having:
            work[worker] = work.get(worker, 0.0) + tokens / len(having)
    return sum(work.values()) / len(work) / max(work.values())
