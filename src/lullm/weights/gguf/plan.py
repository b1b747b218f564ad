"""Which matrices of a model keep the blocks of a GGUF file as they are stored."""

from collections.abc import Iterator, Mapping

from lullm.nn.experts import Gate
from lullm.nn.linear import FusedLinear, Matrix
from lullm.ops.quantized import grid
from lullm.ops.quantized.grid import Grid, GridLayout
from lullm.ops.quantized.weight import Layout
from lullm.weights.gguf.tensor import MXFP4
from lullm.weights.quantization import whole_blocks
from lullm.weights.rows.cut import Cut
from lullm.weights.target import Loadable

_GRIDS = {"Q4_0": grid.Q4_0, "Q8_0": grid.Q8_0, "Q4_K": grid.Q4_K, "Q5_K": grid.Q5_K, "Q6_K": grid.Q6_K}
_MIXED = {frozenset({"Q4_0", "Q8_0"}): grid.Q8_0}
_ANY_K = frozenset({"Q4_K", "Q5_K", "Q6_K"})


def keep_blocks(model: Loadable, formats: Mapping[str, str]) -> int:
    """Give matrices of a meta model the storage that holds exactly what the file's tensors hold.

    A fused matrix gets one that holds all its parts. Returns the number of matrices; the others are decoded.

    Args:
        formats: of the file's tensors, by a checkpoint's names.
    """
    stored = {model.rules.canonical_name(name): block for name, block in formats.items()}
    num_kept = 0
    for module, own, names in _matrices(model):
        layout = _layout(frozenset(stored.get(name, "") for name in names), module, model.cuts.get(own))
        if layout is not None:
            module.lay_out(layout)
            num_kept += 1
    return num_kept


def _layout(blocks: frozenset[str], module: Matrix, cut: Cut | None) -> Layout | None:
    if blocks == {"MXFP4"}:
        num_outputs, num_inputs = module.weight.shape
        return whole_blocks(MXFP4, num_outputs, num_inputs, cut)
    grid = _grid_of(blocks)
    return None if grid is None else GridLayout(grid, *module.weight.shape)


def _grid_of(blocks: frozenset[str]) -> Grid | None:
    """One that holds these formats beside each other."""
    if len(blocks) == 1:
        return _GRIDS.get(next(iter(blocks)))
    return grid.ANY_K if blocks <= _ANY_K else _MIXED.get(blocks)


def _matrices(model: Loadable) -> Iterator[tuple[Matrix, str, list[str]]]:
    """All that may be quantized: their parameters' names, and those of the tensors that fill them."""
    for name, module in model.named_modules():
        if isinstance(module, Matrix) and module.weight is not None and not isinstance(module, Gate):
            prefix, _, last = name.rpartition(".")
            parts = model.rules.parts_of(last) if isinstance(module, FusedLinear) else None
            wholes = [f"{name}.weight"] if parts is None else [f"{prefix}.{part}.weight" for part in parts]
            yield module, f"{name}.weight", wholes
