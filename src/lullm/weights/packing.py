"""Packing: the matrices of a loaded model into the order in which the ops read them."""

from torch import nn

from lullm.nn.embedding import Embedding, LMHead
from lullm.nn.linear import Linear
from lullm.ops.table import Ops


def pack_weights(model: nn.Module, ops: Ops) -> None:
    """Rearrange every matrix in place, once, after all of it was filled. Blocking: about 0.1 s per gigabyte."""
    for module in model.modules():
        if isinstance(module, Linear | Embedding | LMHead) and module.weight is not None:
            ops.pack_weight_(module.weight)


def unpack_weights(model: nn.Module, ops: Ops) -> None:
    """Undo `pack_weights`: before single tensors are updated, or weights are read as a checkpoint has them."""
    for module in model.modules():
        if isinstance(module, Linear | Embedding | LMHead) and module.weight is not None:
            ops.unpack_weight_(module.weight)
