"""Swaps of a worker's experts with those of other workers."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import torch

from lullm.collective.collective import Collective
from lullm.collective.message import gather_bytes
from lullm.models.protocol import Model
from lullm.nn.experts import Expert, MixtureOfExperts
from lullm.ops.cpu.library import load_library
from lullm.types.parallel.experts import LayerExperts
from lullm.weights.store import WeightStore

_LAYER = re.compile(r"\blayers\.(\d+)\b")


def layer_experts(model: Model) -> list[LayerExperts]:
    """The experts of every layer that has any."""
    library = load_library()
    isa = "" if library is None else library.isa  # each has its own order of packed weights
    return [
        LayerExperts(
            layer,
            tuple(mixture.load.tolist()),
            tuple(mixture.slot_of_expert.tolist()),
            len(mixture.in_slots),
            mixture.form and f"{mixture.form} {isa}",
        )
        for layer, _, mixture in _mixtures(model)
    ]


def clear_expert_load(model: Model) -> None:
    """Set all counts of tokens to 0."""
    for _, _, mixture in _mixtures(model):
        mixture.load.zero_()


def swap_experts(
    model: Model, store: WeightStore, group: Collective, swaps: Mapping[int, Sequence[tuple[int, int]]]
) -> None:
    """Swap the experts of pairs of slots, by layer. All workers of a stage call it with the same swaps.

    Addresses stay and contents change, so recorded steps stay valid. The store's facts of a parameter move with it.
    Must not be interrupted.

    Raises:
        EngineAsleepError: the weights are asleep; nothing was moved. WorkerLostError: the weights are mixed.
    """
    store.check_resident()
    before = _names(model, swaps)
    for layer, _, mixture in _mixtures(model):
        first, size = mixture.slots.first, len(mixture.in_slots)
        for pair in swaps.get(layer, ()):
            for slot, other in (pair, pair[::-1]):
                if slot // size == group.rank:
                    _exchange(mixture.in_slots[slot - first], group, other // size)
            mixture.swap_names(*pair)
    gathered = gather_bytes(group, json.dumps(store.facts_of(before)).encode())  # checksums have 128 bits
    facts = {name: tuple(fact) for part in gathered for name, fact in json.loads(part).items()}
    store.rename(before, {name: facts[name] for name in _names(model, swaps)})


def _exchange(expert: Expert, group: Collective, peer: int) -> None:
    """Exchange the contents of an expert here with the peer's. The lower rank sends first."""
    for parameter in expert.parameters():
        theirs = torch.empty_like(parameter.data)
        if group.rank < peer:
            group.send(parameter.data, peer)
            group.receive_(theirs, peer)
        else:
            group.receive_(theirs, peer)
            group.send(parameter.data, peer)
        parameter.data.copy_(theirs)


def _mixtures(model: Model) -> Iterator[tuple[int, str, MixtureOfExperts]]:
    """(layer, name, module), by layer."""
    for name, module in model.named_modules():
        if isinstance(module, MixtureOfExperts):
            found = _LAYER.search(name)
            assert found is not None, "experts stand in layers"
            yield int(found[1]), name, module


def _names(model: Model, swaps: Mapping[int, Sequence[tuple[int, int]]]) -> list[str]:
    """The names of the parameters of this worker's experts in the layers of these swaps."""
    return [
        f"{name}.experts.{number}.{last}"
        for layer, name, mixture in _mixtures(model)
        if swaps.get(layer)
        for number, expert in enumerate(mixture.experts)
        for last, _ in expert.named_parameters()
    ]
