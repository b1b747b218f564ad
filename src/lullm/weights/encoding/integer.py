"""IntegerTensor: a matrix of small integers with scales and zero points, per row, tensor or group of inputs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.ops.quantized.integer_rows import IntegerRows


@dataclass(frozen=True, eq=False)
class IntegerTensor:
    """A matrix `[out, in]`: (integer - zero point) x scale, in float32. See `EncodedTensor`.

    Args:
        name: for errors.
        read: (first row, last row) -> these rows' integers, uint8 or int8 `[n, in]`.
        zeros: like `scales`; or one number for all.
        scales: `[out or 1, groups]`.
        group_of: the group of each input, int64 `[in]`; None: runs of `in / groups` inputs.
        centre: the zero point of a symmetric scheme, for integers as `read` gives them.
        bits: of an integer.
        first, last: the rows that are meant, of all.
    """

    name: str
    read: Callable[[int, int], Tensor]
    zeros: Tensor | int
    scales: Tensor
    group_of: Tensor | None
    centre: int
    bits: int
    num_inputs: int
    first: int
    last: int

    @cached_property
    def shape(self) -> torch.Size:
        return torch.Size((self.last - self.first, self.num_inputs))

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def __len__(self) -> int:
        return self.last - self.first

    def split(self, num_rows: int) -> "list[IntegerTensor]":
        starts = range(self.first, self.last, num_rows)
        return [replace(self, first=start, last=min(start + num_rows, self.last)) for start in starts]

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

    def integers(self, bits: int) -> IntegerRows | None:
        if self.bits > bits or self.scales.shape[1] != 1:
            return None
        zeros = self._zeros()
        if (zeros != self.centre).any() if isinstance(zeros, Tensor) else zeros != self.centre:
            return None
        integers = self.read(self.first, self.last)
        if integers.dtype == torch.uint8:
            integers = (integers - self.centre).view(torch.int8)  # modulo 256
        return IntegerRows(integers, self._scales().float().reshape(-1).expand(len(self)))

    def _scales(self) -> Tensor:
        return self.scales if len(self.scales) == 1 else self.scales[self.first : self.last]

    def _zeros(self) -> Tensor | int:
        if isinstance(self.zeros, int) or len(self.zeros) == 1:
            return self.zeros
        return self.zeros[self.first : self.last]


def check(name: str, is_right: bool, text: str) -> None:
    """Raises ModelLoadError unless `is_right`: what is stored for the matrix `name` does not fit together."""
    if not is_right:
        raise ModelLoadError(
            f"{name}: {text}; fetch the checkpoint again, or compare config.json's quantization_config"
        )


def stated_shape(name: str, stated: Tensor) -> tuple[int, int]:
    """(outputs, inputs) as a tensor of the checkpoint says them. Raises ModelLoadError: it is no shape."""
    is_shape = stated.shape == (2,) and not stated.is_floating_point() and bool((stated > 0).all())
    check(name, is_shape, f"weight_shape {list(stated.shape)} of {stated.dtype} is no shape of a matrix")
    num_rows, num_inputs = stated.tolist()
    return int(num_rows), int(num_inputs)
