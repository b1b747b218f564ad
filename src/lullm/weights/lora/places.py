"""LoraPlaces: the memory of the adapters in use, beside the weights of their layers."""

from collections.abc import Mapping

import torch
from torch import Tensor

from lullm.arena.arena import ALIGNMENT, Arena
from lullm.config.engine_option import EngineOptions
from lullm.ops.lora.weights import LoraWeights
from lullm.units import round_up
from lullm.weights.lora.layers import LoraLayer, lora_layers
from lullm.weights.lora.reading import Adapter
from lullm.weights.target import Loadable


def places_bytes(layers: Mapping[str, LoraLayer], num_places: int, max_rank: int, dtype: torch.dtype) -> int:
    """Bytes of all places in an arena."""
    shapes = (shape for layer in _distinct(layers) for shape in _shapes(layer, num_places, max_rank))
    return sum(round_up(torch.Size(shape).numel() * dtype.itemsize, ALIGNMENT) for shape in shapes)


def adapters_bytes(model: Loadable, options: EngineOptions, dtype: torch.dtype, on_host: bool) -> tuple[int, int]:
    """Bytes of the places that an engine's options ask for, and the most of the adapters that it keeps beside them.

    `on_host`: they are kept in the memory of the places. Raises ModelLoadError: no layer may have adapters.
    """
    if not options.enable_lora:
        return 0, 0
    layers, num_kept = lora_layers(model), options.num_kept_loras if on_host else 0
    # An adapter of the highest rank takes as much in host memory as in a place.
    places, kept = (places_bytes(layers, each, options.max_lora_rank, dtype) for each in (options.max_loras, num_kept))
    return places, kept


class LoraPlaces:
    """`num_places` places for an adapter each, in every layer that may have adapters. Their addresses stay.

    Attributes:
        rows: `[max_rows]` int64: the place of each of the next step's rows; -1: none. See `LoraWeights`.
    """

    def __init__(
        self,
        layers: Mapping[str, LoraLayer],
        arena: Arena,
        num_places: int,
        max_rank: int,
        max_rows: int,
        dtype: torch.dtype,
    ):
        self.rows: Tensor = torch.full((max_rows,), -1, dtype=torch.int64, device=arena.device)
        self._on_host = arena.device.type == "cpu"
        self._weights: dict[str, LoraWeights] = {}
        for layer in _distinct(layers):
            a, b = (arena.empty(shape, dtype) for shape in _shapes(layer, num_places, max_rank))
            ranks = torch.zeros((num_places, len(layer.parts)), dtype=torch.int64, device="cpu")
            weights = LoraWeights(a, b, ranks, self.rows, layer.part_sizes)
            layer.matrix.lora = self._weights[layer.name] = weights
        self.clear()

    @torch.inference_mode()
    def put(self, place: int, adapter: Adapter) -> None:
        """Put an adapter into a place, where another was before."""
        for name, weights in self._weights.items():
            own = adapter.layers.get(name)
            a, b = weights.a[place].unflatten(0, (len(weights.part_sizes), -1)), weights.b[place]
            rank = 0 if own is None else len(own.b)
            if own is not None:
                a[:, :rank].copy_(own.a)
                b[:rank].copy_(own.b)
            if weights.ranks[place].any() or rank:  # otherwise it is 0 already, and may have no memory yet
                a[:, rank:].zero_()
                b[rank:].zero_()
            weights.ranks[place] = torch.tensor(own.ranks if own is not None else [0] * len(weights.part_sizes))

    @torch.inference_mode()
    def clear(self) -> None:
        """Forget all adapters: the memory was released, or is new. On a host it reads as zeros then."""
        for weights in self._weights.values():
            weights.ranks.zero_()
            if not self._on_host:
                weights.a.zero_()
                weights.b.zero_()


def _shapes(layer: LoraLayer, num_places: int, max_rank: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """The shapes of `LoraWeights.a` and `b`."""
    matrix = layer.matrix
    return (num_places, len(layer.parts) * max_rank, matrix.num_columns), (num_places, max_rank, matrix.num_rows)


def _distinct(layers: Mapping[str, LoraLayer]) -> list[LoraLayer]:
    """Each layer once; a fused one stands under the names of all its parts."""
    return list({layer.name: layer for layer in layers.values()}.values())
