"""Which matrices of a model are quantized, and to how many bits.

Linear layers take the chosen format. The embedding and the head, often one matrix, always take 8 bits: all logits
depend on it, and 4 bits there cost more accuracy than 4 bits in all layers. Norms, biases and the gates of experts
are not quantized.

A checkpoint that is quantized already keeps its own integers, in those matrices whose integers a native format holds.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Literal

from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.nn.embedding import Embedding, LMHead
from lullm.nn.experts import Gate
from lullm.nn.linear import FusedLinear, Matrix
from lullm.ops.quantized.grid import GRIDS as ALL_GRIDS
from lullm.ops.quantized.grid import GridLayout
from lullm.ops.quantized.weight import Layout, QuantizedLayout
from lullm.weights.encoding.digits import DigitTensor
from lullm.weights.encoding.encoded import EncodedTensor
from lullm.weights.encoding.integer import IntegerTensor
from lullm.weights.encoding.joining import Joining
from lullm.weights.target import Loadable

BITS: dict[str, Literal[8, 4]] = {"int8": 8, "int4": 4}
"""By the values of `EngineConfig.quantization`."""
GRIDS = {grid.number: grid for grid in ALL_GRIDS}


def quantize_model(model: Loadable, quantization: str) -> None:
    """Give every matrix of a meta model storage of 'int8' or 'int4'. `QuantizedRows` fills it later."""
    for _, module in _matrices(model):
        module.quantize(8 if isinstance(module, Embedding | LMHead) else BITS[quantization])


def quantize_as_stored(
    model: Loadable, tensors: Iterable[tuple[str, Tensor | EncodedTensor]], names: Iterable[str]
) -> int:
    """Give matrices of a meta model the storage that holds exactly what the checkpoint's tensors (`names`) hold.

    A fused matrix gets one where all its parts fit the same. Returns the number of matrices; the others are decoded.
    What does not belong together is left to the loader, which names all of it.
    """
    formats: dict[str, tuple[int, ...]] = {}
    joining = Joining(model.rules.joins, names)
    for name, tensor in tensors:
        with contextlib.suppress(ModelLoadError):
            whole = joining.add(name, tensor) if isinstance(tensor, Tensor) else None
            if whole is not None and isinstance(whole[1], IntegerTensor | DigitTensor):
                formats[model.rules.canonical_name(whole[0])] = whole[1].native_formats
    num_quantized = 0
    for name, module in _matrices(model):
        prefix, _, last = name.rpartition(".")
        parts = model.rules.parts_of(last) if isinstance(module, FusedLinear) else None
        wholes = [f"{name}.weight"] if parts is None else [f"{prefix}.{part}.weight" for part in parts]
        fitting = set.intersection(*(set(formats.get(whole, ())) for whole in wholes))
        if any(model.rules.scale_of(whole) != 1.0 for whole in wholes):
            fitting -= GRIDS.keys()
        if fitting:
            module.lay_out(_layout(min(fitting), *module.weight.shape))
            num_quantized += 1
    return num_quantized


def _layout(number: int, num_outputs: int, num_inputs: int) -> Layout:
    if number in GRIDS:
        return GridLayout(GRIDS[number], num_outputs, num_inputs)
    return QuantizedLayout(4 if number == 4 else 8, num_outputs, num_inputs)


def _matrices(model: Loadable) -> Iterator[tuple[str, Matrix]]:
    for name, module in model.named_modules():
        if isinstance(module, Matrix) and module.weight is not None and not isinstance(module, Gate):
            yield name, module
