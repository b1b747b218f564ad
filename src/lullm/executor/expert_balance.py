"""Which experts change places so that all workers have equal load. Pure functions."""

from collections.abc import Sequence
from dataclasses import replace

from lullm.errors import ConfigError, UnsupportedError
from lullm.executor.merge import agreed
from lullm.types.parallel.experts import ExpertLoad, LayerExperts

Swap = tuple[int, int]
"""Two slots whose experts change places."""


def merged_experts(answers: Sequence[Sequence[LayerExperts]]) -> list[LayerExperts]:
    """The layers of all stages. All workers of a stage report the same layers, since they route every token alike."""
    layers: dict[int, list[LayerExperts]] = {}
    for answer in answers:
        for each in answer:
            layers.setdefault(each.layer, []).append(each)
    return [_told_by_all(layers[layer]) for layer in sorted(layers)]


def _told_by_all(told: Sequence[LayerExperts]) -> LayerExperts:
    forms = {each.form for each in told}
    form = forms.pop() if len(forms) == 1 else ""
    return agreed([replace(each, form=form) for each in told], f"the experts of layer {told[0].layer}")


def load_of(layers: Sequence[LayerExperts]) -> ExpertLoad:
    """The load in the form for callers."""
    return ExpertLoad(
        {each.layer: each.load for each in layers},
        {each.layer: [_workers_of(each, slot) for slot in each.slots] for each in layers},
    )


def check_movable(layers: Sequence[LayerExperts]) -> None:
    """Check that experts can change places. Raises ConfigError, UnsupportedError otherwise."""
    if not layers:
        raise ConfigError("rebalance_experts: the model has no experts")
    if any(each.num_own == len(each.slots) for each in layers):
        raise ConfigError(
            "rebalance_experts moves whole experts between workers: it needs enable_expert_parallel=True and a "
            "tensor_parallel_size above 1"
        )
    mixed = [str(each.layer) for each in layers if not each.form]
    if mixed:
        raise UnsupportedError(
            f"rebalance_experts: the experts of layer {', '.join(mixed)} are not stored in one way, so one has "
            "no room in another's place: the checkpoint leaves some unquantized, or the workers' processors differ"
        )


def even_swaps(experts: LayerExperts) -> list[Swap]:
    """Swaps that reduce the load of the layer's busiest worker; empty if none do.

    Experts go to the worker with the least load that has room, the busiest expert first. The result is at most 4/3 of
    the optimum (Graham, Bounds on multiprocessing timing anomalies, 1969) for workers without a bound on their number
    of experts.
    """
    slots, load, size = list(experts.slots), experts.load, experts.num_own
    workers = [slot // size for slot in slots]
    wanted = _numbered_alike(_packed(load, len(slots) // size, size), workers, len(slots) // size)
    if _most(load, wanted) >= _most(load, workers):
        return []
    swaps = []
    for expert, worker in enumerate(wanted):
        if slots[expert] // size == worker:
            continue
        # An expert that has to come here anyway saves a swap.
        leaving = [e for e, slot in enumerate(slots) if slot // size == worker and wanted[e] != worker]
        other = next((e for e in leaving if wanted[e] == slots[expert] // size), leaving[0])
        swaps.append((slots[expert], slots[other]))
        slots[expert], slots[other] = slots[other], slots[expert]
    return swaps


def after_swaps(experts: LayerExperts, swaps: Sequence[Swap]) -> LayerExperts:
    """The layer after these swaps."""
    expert_of = {slot: expert for expert, slot in enumerate(experts.slots)}
    for slot, other in swaps:
        expert_of[slot], expert_of[other] = expert_of[other], expert_of[slot]
    slots = sorted(expert_of, key=lambda slot: expert_of[slot])
    return replace(experts, slots=tuple(slots))


def num_moved(before: Sequence[LayerExperts], after: Sequence[LayerExperts]) -> int:
    """How many experts of all layers have changed their slot."""
    pairs = zip(before, after, strict=True)
    return sum(old != new for was, now in pairs for old, new in zip(was.slots, now.slots, strict=True))


def _packed(load: Sequence[int], num_workers: int, size: int) -> list[int]:
    """The worker that takes each expert."""
    work, num_experts, wanted = [0] * num_workers, [0] * num_workers, [0] * len(load)
    for expert in sorted(range(len(load)), key=lambda expert: -load[expert]):
        free = (worker for worker in range(num_workers) if num_experts[worker] < size)
        worker = min(free, key=lambda worker: work[worker])
        work[worker] += load[expert]
        num_experts[worker] += 1
        wanted[expert] = worker
    return wanted


def _numbered_alike(wanted: Sequence[int], now: Sequence[int], num_workers: int) -> list[int]:
    """The same packing with workers renumbered, so that many experts can stay."""
    pairs = list(zip(wanted, now, strict=True))
    number: dict[int, int] = {}
    for pair in sorted(set(pairs), key=lambda pair: (-pairs.count(pair), pair)):
        if pair[0] not in number and pair[1] not in number.values():
            number[pair[0]] = pair[1]
    rest = iter(sorted(set(range(num_workers)) - set(number.values())))
    return [number[worker] if worker in number else number.setdefault(worker, next(rest)) for worker in wanted]


def _most(load: Sequence[int], workers: Sequence[int]) -> int:
    work: dict[int, int] = {}
    for tokens, worker in zip(load, workers, strict=True):
        work[worker] = work.get(worker, 0) + tokens
    return max(work.values())


def _workers_of(experts: LayerExperts, slot: int) -> list[int]:
    if experts.num_own == len(experts.slots):
        return [0]
    return [slot // experts.num_own]
