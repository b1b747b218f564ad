"""Packing: rearranges the matrices of a loaded model into the ops' order."""

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from lullm.nn.linear import Matrix
from lullm.ops.table import Ops
from lullm.weights.target import Loadable


def packed_parameters(model: Loadable) -> Iterator[nn.Parameter]:
    """The matrices that `pack_weights` rearranges; quantized ones are written in the ops' order from the start."""
    for module in model.modules():
        if isinstance(module, Matrix) and module.weight is not None and module.layout is None:
            yield module.weight


def pack_weights(model: Loadable, ops: Ops, is_elsewhere: Callable[[Tensor], bool] = lambda weight: False) -> None:
    """Rearrange every matrix in place, once it is complete. Blocking: about 0.1 s per gigabyte.

    Args:
        is_elsewhere: whether a matrix is not in its place yet; it is left out.
    """
    for weight in packed_parameters(model):
        if not is_elsewhere(weight):
            ops.pack_weight_(weight)
