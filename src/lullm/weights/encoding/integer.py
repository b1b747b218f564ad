"""IntegerTensor: a matrix of small integers with scales and zero points, per row, tensor or group of inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.ops.quantized import grid
from lullm.ops.quantized.grid import GridRows
from lullm.ops.quantized.integer_rows import IntegerRows
from lullm.weights.encoding.encoded import RowRange

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of each of eight neighbouring outputs in AWQ: its kernel reads even and odd places in two steps.
"""


@dataclass(frozen=True, eq=False)
class IntegerTensor(RowRange):
    """A matrix `[out, in]`: (integer - zero point) x scale, in float32.

    Args:
        name: for errors.
        read: (first row, last row) -> these rows' integers, uint8 or int8 `[n, in]`.
        zeros: like `scales`, integers or not; or one number for all.
        scales: `[out or 1, groups]`.
        group_of: the group of each input, int64 `[in]`; None: runs of `in / groups` inputs.
        centre: the zero point of a symmetric scheme, for the integers of `read`.
        bits: of an integer. 8: signed; fewer: unsigned.
    """

    name: str
    read: Callable[[int, int], Tensor]
    zeros: Tensor | int
    scales: Tensor
    group_of: Tensor | None
    centre: int
    bits: int

    def decode(self) -> Tensor:
        values = self.read(self.first, self.last).float()
        zeros, scales = self._zeros(), self._scales().float()
        if self.group_of is not None:
            zeros = zeros.index_select(1, self.group_of) if isinstance(zeros, Tensor) else zeros
            return (values - zeros) * scales.index_select(1, self.group_of)
        groups = values.unflatten(1, (scales.shape[1], -1))  # [n, groups, inputs]
        groups -= zeros.float().unsqueeze(-1) if isinstance(zeros, Tensor) else zeros
        groups *= scales.unsqueeze(-1)
        return groups.flatten(1)

    @cached_property
    def native_formats(self) -> tuple[int, ...]:
        num_groups = self.scales.shape[1]
        if num_groups > 1 or not self._is_symmetric:
            is_exact = torch.equal(self.scales.half().float(), self.scales.float())
            if self.group_of is not None or not is_exact or not self._has_digits:
                return ()
        return integer_formats(self.bits, self._is_symmetric, self.num_inputs, num_groups)

    def rows(self, number: int) -> IntegerRows | GridRows | None:
        if number not in self.native_formats:
            return None
        integers = self.read(self.first, self.last)
        if number == grid.ZERO_POINTS.number:
            zeros, scales = self._zeros(), self._scales().half().expand(len(self), -1)
            if isinstance(zeros, int):
                zeros = torch.tensor([[zeros]])
            return GridRows(integers, scales, None, scales, zeros.to(torch.uint8).expand(len(self), scales.shape[1]))
        if integers.dtype == torch.uint8:
            integers = (integers - self.centre).view(torch.int8)  # modulo 256
        scales = self._scales().expand(len(self), -1)
        return GridRows(integers, scales.half()) if number > 8 else IntegerRows(integers, scales.float().reshape(-1))

    @cached_property
    def _is_symmetric(self) -> bool:
        return self.zeros == self.centre if isinstance(self.zeros, int) else bool((self.zeros == self.centre).all())

    @cached_property
    def _has_digits(self) -> bool:
        """Whether all zero points are integers in the range of digits."""
        zeros = self.zeros
        if isinstance(zeros, int) or not zeros.is_floating_point():
            return True
        return bool(((zeros == zeros.round()) & (zeros >= 0) & (zeros < 2**self.bits)).all())

    def _scales(self) -> Tensor:
        return self.scales if len(self.scales) == 1 else self.scales[self.first : self.last]

    def _zeros(self) -> Tensor | int:
        if isinstance(self.zeros, int) or len(self.zeros) == 1:
            return self.zeros
        return self.zeros[self.first : self.last]


def integer_formats(bits: int, is_symmetric: bool, num_inputs: int, num_groups: int) -> tuple[int, ...]:
    """Formats that hold such rows, the smallest first. Scales of groups must be float16."""
    if num_groups == 1 and is_symmetric:
        return (4, 8) if bits <= 4 else (8,)
    if num_inputs // num_groups % grid.Q4_0.group_inputs:
        return ()
    if bits <= 4:
        return (grid.Q4_0.number, grid.ZERO_POINTS.number) if is_symmetric else (grid.ZERO_POINTS.number,)
    return (grid.Q8_0.number,) if is_symmetric else ()


def check(name: str, is_right: bool, text: str) -> None:
    """Raises ModelLoadError unless `is_right`: the stored parts of the matrix `name` do not fit together."""
    if not is_right:
        raise ModelLoadError(
            f"{name}: {text}; fetch the checkpoint again, or compare config.json's quantization_config"
        )


def stated_shape(name: str, stated: Tensor) -> tuple[int, int]:
    """(outputs, inputs) from a tensor of the checkpoint. Raises ModelLoadError: it is no shape."""
    is_shape = stated.shape == (2,) and not stated.is_floating_point() and bool((stated > 0).all())
    check(name, is_shape, f"weight_shape {list(stated.shape)} of {stated.dtype} is no shape of a matrix")
    num_rows, num_inputs = stated.tolist()
    return int(num_rows), int(num_inputs)


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


def unpack_stream(values: Tensor, bits: int) -> Tensor:
    """uint8 `[..., n x 8 / bits]` of bytes uint8 `[..., n]`: integers of any width, which may lie across bytes."""
    if 8 % bits == 0:
        return unpack_bytes(values, bits)
    words = values.unflatten(-1, (-1, bits)).long()  # so many bytes hold eight
    word = (words << torch.arange(0, 8 * bits, 8)).sum(-1, keepdim=True)
    return (word >> torch.arange(0, 8 * bits, bits) & (2**bits - 1)).to(torch.uint8).flatten(-2)


def unpack_bytes(values: Tensor, bits: int) -> Tensor:
    """uint8 `[..., n x 8 / bits]` of bytes uint8 `[..., n]`."""
    if bits == 8:
        return values
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=values.device)
    return (values.unsqueeze(-1) >> shifts & (2**bits - 1)).flatten(-2)
