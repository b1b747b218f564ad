"""LayerCache: the KV cache of one layer. HeadNorm: the norm of query and key heads before they are rotated.

The token at position `p` of a sequence lives in the slot `block_table[p // block_size] * block_size + p % block_size`.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """Keys and values of one layer, in blocks, and the scales of an fp8 cache.

    Args:
        key, value: `[num_blocks, block_size, Hkv, D]` each, of the model's dtype or fp8 (`float8_cache`); or int8 with
            rows of D + 2 (`int8_cache`).
            One tensor may be both, where a layer keeps latent vectors.
        key_scales, value_scales: `[Hkv]` float32, both or neither; only an fp8 cache has them. None: all are 1.
    """

    key: Tensor
    value: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What lies in blocks: keys, values, of the same shape and dtype; or the one tensor that is both."""
        return (self.key,) if self.key is self.value else (self.key, self.value)

    @property
    def num_blocks(self) -> int:
        return self.key.shape[0]

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.key.shape[1]

    @property
    def num_kv_heads(self) -> int:
        return self.key.shape[2]


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorm:
    """RMSNorm of every query head by `q_weight [D]` and of every key head by `k_weight [D]`."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float
