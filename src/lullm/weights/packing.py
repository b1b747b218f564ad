"""Packing: rearranges the matrices of a loaded model into the ops' order."""

from collections.abc import Iterator

from torch import nn

from lullm.nn.linear import Matrix
from lullm.ops.table import Ops
from lullm.weights.target import Loadable


def packed_parameters(model: Loadable) -> Iterator[nn.Parameter]:
    """The matrices that `pack_weights` rearranges; quantized ones are written in the ops' order from the start."""
    for module in model.modules():
        if isinstance(module, Matrix) and module.weight is not None and module.layout is None:
            yield module.weight


def pack_weights(model: Loadable, ops: Ops) -> None:
    """Rearrange every matrix in place, once it is complete. Blocking: about 0.1 s per gigabyte."""
    for weight in packed_parameters(model):
        ops.pack_weight_(weight)
