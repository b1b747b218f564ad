"""LayerCache: the KV cache of one layer. HeadNorm: the norm of query and key heads before the rotation.

The token at position `p` of a sequence lives in the slot `block_table[p // block_size] * block_size + p % block_size`.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """Keys and values of one layer, in blocks, and the scales of an fp8 cache.

    Args:
        key, value: `[num_blocks, block_size, Hkv, D]` each, of the model's dtype or fp8 (`float8_cache`); or int8 with
            rows of D + 2 or more (`int8_cache`).
            A layer with latent vectors has one tensor as both.
        key_scales, value_scales: `[Hkv]` float32, both or neither; only an fp8 cache has them. None: all are 1.
    """

    key: Tensor
    value: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of blocks: keys and values, of the same shape and dtype; or the one tensor that is both."""
        return (self.key,) if self.key is self.value else (self.key, self.value)

    def share(self, number: int, num_shares: int, num_heads: int) -> "LayerCache":
        """The cache of one of `num_shares` layers that divide every block equally.

        In the result, the layer's part of block b is block `b * num_shares`.
        """
        sides = [_share(side, number, num_shares, num_heads) for side in self.tensors]
        return LayerCache(sides[0], sides[-1])

    def by_slot(self) -> "LayerCache":
        """The same in blocks of one token each, whose ids are slots."""
        sides = [side.view(-1, 1, *side.shape[2:]) for side in self.tensors]
        return LayerCache(sides[0], sides[-1], self.key_scales, self.value_scales)

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

    @property
    def row_bytes(self) -> int:
        """Bytes of one head of one token."""
        return self.key.shape[3] * self.key.element_size()


def _share(side: Tensor, number: int, num_shares: int, num_heads: int) -> Tensor:
    """A view `[num_blocks * num_shares - number, block_size, num_heads, row]` of `[num_blocks, block_size, *]`."""
    num_blocks, block_size = side.shape[:2]
    row_len = side[0, 0].numel() // (num_shares * num_heads)
    blocks = side.view(num_blocks * num_shares, block_size, num_heads, row_len)
    return blocks[number:]


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorm:
    """RMSNorm of every query head by `q_weight [D]` and of every key head by `k_weight [D]`."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float
