"""Unpacking: small integers from a checkpoint's words, the first in the low bits."""

import torch
from torch import Tensor

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of each of eight neighbouring outputs in AWQ: its kernel reads even and odd places in two steps.
"""


def unpack(words: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """uint8 `[rows, n x 32 / bits]` of words int32 `[rows, n]`. order: the place in its word of each integer."""
    in_row = words.contiguous().flatten().view(torch.uint8)  # little endian: the low byte is the first
    pieces = unpack_bytes(in_row.view(len(words), -1), bits)
    if order is not None:
        pieces = pieces.unflatten(1, (-1, len(order)))[..., list(order)].flatten(1)
    return pieces


def unpack_columns(words: Tensor, bits: int) -> Tensor:
    """uint8 `[columns, n x 32 / bits]` of words int32 `[n, columns]`, which hold neighbours of a column."""
    return unpack(words.t(), bits)


def unpack_bytes(values: Tensor, bits: int) -> Tensor:
    """uint8 `[rows, n x 8 / bits]` of bytes uint8 `[rows, n]`."""
    if bits == 8:
        return values
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=values.device)
    return (values.unsqueeze(-1) >> shifts & (2**bits - 1)).flatten(1)
