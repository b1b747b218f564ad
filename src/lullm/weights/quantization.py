"""The choice of the matrices to quantize, and of their bits.

Linear layers take the chosen format. The embedding and the head, often one matrix, always take 8 bits. All logits
depend on them, and 4 bits there cost more accuracy than 4 bits in all layers. Norms, biases and the gates of experts
are not quantized.

A quantized checkpoint keeps its own numbers in matrices that a native format holds exactly.
"""

import re
from collections.abc import Iterator, Mapping
from math import gcd
from typing import Literal

from lullm.nn.embedding import Embedding, LMHead
from lullm.nn.experts import Gate
from lullm.nn.linear import FusedLinear, Matrix, PlainLinear
from lullm.ops.quantized.grid import GRIDS as ALL_GRIDS
from lullm.ops.quantized.grid import GridLayout
from lullm.ops.quantized.narrow import BLOCK_INPUTS, narrow_format, narrow_layout
from lullm.ops.quantized.weight import PANEL_ROWS, Layout, QuantizedLayout
from lullm.weights.rows.cut import Cut
from lullm.weights.rule import WeightRules
from lullm.weights.target import Loadable

BITS: dict[str, Literal[8, 4]] = {"int8": 8, "int4": 4}
"""Bits by the values of `EngineConfig.quantization`."""
GRIDS = {grid.number: grid for grid in ALL_GRIDS}


def quantize_model(model: Loadable, quantization: str) -> None:
    """Give every matrix of a meta model storage of 'int8' or 'int4'. `QuantizedRows` fills it later."""
    for _, module in matrices(model):
        module.quantize(8 if isinstance(module, Embedding | LMHead) else BITS[quantization])


def keep_formats(model: Loadable, rules: WeightRules, formats: Mapping[str, tuple[int, ...]]) -> int:
    """Give matrices of a meta model a storage that holds all tensors which fill them exactly.

    Returns the number of matrices with such a storage; the others are decoded.

    Args:
        rules: of the checkpoint. formats: the formats that hold a tensor (`Layout.format`), the smallest first, by
            canonical names.
    """
    num_quantized = 0
    for name, module in matrices(model):
        wholes = tensors_of(rules, name, module)
        fitting = set.intersection(*(set(_formats_of(whole, formats, rules)) for whole in wholes))
        if any(rules.scale_of(whole) != 1.0 for whole in wholes):
            fitting -= GRIDS.keys()
        if any(map(rules.is_normalized, wholes)):
            fitting = set()
        num_outputs, num_inputs = module.weight.shape
        cut = model.cuts.get(f"{name}.weight")
        layout = whole_blocks(min(fitting), num_outputs, num_inputs, cut) if fitting else None
        if layout is not None:
            module.lay_out(layout)
            num_quantized += 1
    return num_quantized


def tensors_of(rules: WeightRules, name: str, module: Matrix) -> list[str]:
    """Canonical names of the tensors that fill a matrix: its own, or those of its parts."""
    prefix, _, last = name.rpartition(".")
    parts = rules.parts_of(last) if isinstance(module, FusedLinear) else None
    return [f"{name}.weight"] if parts is None else [f"{prefix}.{part}.weight" for part in parts]


def _formats_of(whole: str, formats: Mapping[str, tuple[int, ...]], rules: WeightRules) -> tuple[int, ...]:
    """The formats of this tensor, or of the one that holds it with those of other modules."""
    for stack in rules.stacks:
        match = re.fullmatch(rf"(.+\.{stack.modules})\.\d+\.(.+)", whole)
        if match and match[2] in stack.parts and f"{match[1]}.{stack.name}" in formats:
            return formats[f"{match[1]}.{stack.name}"]
    return formats.get(whole, ())


def whole_blocks(number: int, num_outputs: int, num_inputs: int, cut: Cut | None = None) -> Layout | None:
    """The layout of a matrix in the format of this number; None: a worker's share is not in whole blocks."""
    if number in GRIDS:
        return GridLayout(GRIDS[number], num_outputs, num_inputs)
    layout = narrow_layout(number, num_outputs, num_inputs)
    if layout is None:
        return QuantizedLayout(4 if number == 4 else 8, num_outputs, num_inputs)
    first = cut.runs[0].source if cut is not None and cut.dim == 1 else 0
    if num_inputs % BLOCK_INPUTS or first % BLOCK_INPUTS or num_outputs % PANEL_ROWS:
        return None
    group = min(gcd(layout.group_inputs, first), num_inputs)  # a share may begin within a group
    return narrow_layout(narrow_format(layout.is_e2m1, group), num_outputs, num_inputs)


def matrices(model: Loadable) -> Iterator[tuple[str, Matrix]]:
    """All matrices that may be quantized, with their names. Gates and towers are not."""
    for name, module in model.named_modules():
        if isinstance(module, Matrix) and module.weight is not None and not isinstance(module, Gate | PlainLinear):
            yield name, module
