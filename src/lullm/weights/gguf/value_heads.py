"""Value heads of Qwen3.5's delta nets: a file has another order than a checkpoint.

A checkpoint has the value heads of one key head together. A file has the first of every key head, then the second of
every one: value head `v` belongs to key head `v % num_keys` in a file, and to `v // (num_values / num_keys)` in a
checkpoint.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lullm.config.gguf.format import FORMATS, BlockFormat
from lullm.config.gguf.keys import Keys
from lullm.errors import ModelLoadError
from lullm.weights.gguf.tensor import GGUFTensor

_FLOAT32 = FORMATS[0]
_QUERIES_AND_KEYS = ("attn_qkv", "ssm_conv1d")
"""Tensors with these names have queries and keys before the values."""
_BY_HEAD = ("attn_gate", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt")
_OUTPUT = "ssm_out"


@dataclass(frozen=True, slots=True)
class ValueHeads:
    """The numbers and sizes of heads in a file of Qwen3.5."""

    num_keys: int
    num_values: int
    key_dim: int
    value_dim: int

    @classmethod
    def of(cls, keys: Keys) -> "ValueHeads":
        """Read them from a file's keys. Raises ModelLoadError: the numbers of heads are not whole."""
        num_keys, num_values = keys.need("ssm.group_count"), keys.need("ssm.time_step_rank")
        value_dim, rest = divmod(keys.need("ssm.inner_size"), num_values)
        if rest or num_values % num_keys:
            raise keys.fault(
                f"ssm.inner_size, ssm.time_step_rank {num_values} and ssm.group_count {num_keys} do not fit"
            )
        return cls(num_keys, num_values, keys.need("ssm.state_size"), value_dim)

    def keeps_blocks(self, name: str, block: BlockFormat) -> bool:
        """Whether the tensor's blocks stay whole: blocks of inputs must lie within a head."""
        return _stem(name) != _OUTPUT or self.value_dim % block.num_values == 0

    def in_order(self, name: str, tensor: GGUFTensor) -> GGUFTensor:
        """The tensor in a checkpoint's order. Raises ModelLoadError: it has another number of heads."""
        stem = _stem(name)
        if stem == _OUTPUT:
            return self._inputs_in_order(name, tensor)
        if stem not in _BY_HEAD + _QUERIES_AND_KEYS:
            return tensor
        num_first = 2 * self.num_keys * self.key_dim if stem in _QUERIES_AND_KEYS else 0
        rows = tensor.raw if len(tensor.shape) > 1 else tensor.raw.view(tensor.shape[0], -1)
        size, rest = divmod(len(rows) - num_first, self.num_values)
        if size < 1 or rest:
            raise ModelLoadError(f"{name} has {len(rows)} rows for {self.num_values} value heads")
        return GGUFTensor(
            torch.cat((rows[:num_first], self._grouped(rows[num_first:], size))).view(tensor.raw.shape),
            tensor.block,
            tensor.shape,
        )

    def _inputs_in_order(self, name: str, tensor: GGUFTensor) -> GGUFTensor:
        if tensor.shape[-1] != self.num_values * self.value_dim:
            raise ModelLoadError(
                f"{name} has {tensor.shape[-1]} inputs for {self.num_values} heads of {self.value_dim}"
            )
        if not self.keeps_blocks(name, tensor.block):
            values = tensor.decode().float()
            tensor = GGUFTensor(values.view(torch.uint8), _FLOAT32, tensor.shape)
        size = tensor.block.row_bytes(self.value_dim)
        raw = self._grouped(tensor.raw.t(), size).t().contiguous()
        return GGUFTensor(raw, tensor.block, tensor.shape)

    def _grouped(self, rows: Tensor, size: int) -> Tensor:
        """Rows `[num_values x size, ...]`, `size` of each head."""
        heads = rows.unflatten(0, (self.num_values // self.num_keys, self.num_keys, size))
        return heads.transpose(0, 1).flatten(0, 2)


def _stem(name: str) -> str:
    """`blk.3.ssm_dt.bias` -> ssm_dt; `blk.3.ssm_a` -> ssm_a."""
    return ([*name.split("."), "", "", ""])[2]
