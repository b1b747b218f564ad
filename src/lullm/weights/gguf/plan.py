"""Which matrices of a model keep the blocks of a GGUF file as they are stored."""

from collections.abc import Mapping

from lullm.nn.linear import Matrix
from lullm.ops.quantized import grid
from lullm.ops.quantized.grid import Grid, GridLayout
from lullm.ops.quantized.weight import Layout
from lullm.weights.gguf.tensor import MXFP4
from lullm.weights.quantization import matrices, tensors_of, whole_blocks
from lullm.weights.rows.cut import Cut
from lullm.weights.rule import WeightRules
from lullm.weights.target import Loadable

_GRIDS = {
    "Q4_0": grid.Q4_0, "Q8_0": grid.Q8_0, "Q5_0": grid.Q8_0, "IQ4_NL": grid.Q8_0, "Q4_K": grid.Q4_K, "Q5_K": grid.Q5_K,
    "Q6_K": grid.Q6_K, "Q3_K": grid.Q6_K, "IQ4_XS": grid.Q6_K, "Q2_K": grid.ANY_K,
}  # fmt: skip
"""The smallest that holds just these numbers; digits of other widths than 4 bits are whole bytes."""
_ANY_0 = frozenset({"Q4_0", "Q5_0", "Q8_0", "IQ4_NL"})
_ANY_K = frozenset({"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"})


def keep_blocks(model: Loadable, rules: WeightRules, formats: Mapping[str, str]) -> int:
    """Give matrices of a meta model the storage that holds exactly what the file's tensors hold.

    A fused matrix gets one that holds all its parts. Returns the number of matrices; the others are decoded.

    Args:
        rules: of the file. formats: of its tensors, by a checkpoint's names.
    """
    stored = {rules.canonical_name(name): block for name, block in formats.items()}
    num_kept = 0
    for name, module in matrices(model):
        blocks = frozenset(stored.get(whole, "") for whole in tensors_of(rules, name, module))
        layout = _layout(blocks, module, model.cuts.get(f"{name}.weight"))
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
    return grid.ANY_K if blocks <= _ANY_K else grid.Q8_0 if blocks <= _ANY_0 else None
