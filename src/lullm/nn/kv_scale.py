"""KVScales: the scales of one layer's fp8 KV cache, as buffers that keep their address and do not sleep.

They come from the checkpoint, from the first batch (`calibrate`), or are 1. Blocks are valid only with the scales that
wrote them. So `reset` and `calibrate` are allowed only while no block is in use.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lullm.ops.cache.layer_cache import LayerCache
from lullm.types.layer_kind import FullAttention, LayerKind, SharedAttention, SlidingWindow

KEY_RANGE, VALUE_RANGE = 192.0, 96.0
"""The largest key and value of the first batch are scaled to these, of 448: room for later, larger ones.

Near vLLM's 200 and 100. Those lie half-way between two values of e4m3, so that the last bit of the scale decided the
rounding of the largest value: with two versions of the ops, log-probabilities differed by 0.05.
"""


class KVScales(nn.Module):
    """`k_scale` and `v_scale` `[Hkv]` float32 are in use. `given [2, Hkv]` comes from the checkpoint or a trainer.

    `given` is NaN where a scale is open: then it is 1, or calibrated. A checkpoint has scales of `num_all_heads` heads;
    those from `first_head` on are here.
    """

    k_scale: Tensor
    v_scale: Tensor
    given: Tensor

    def __init__(self, num_kv_heads: int, first_head: int = 0, num_all_heads: int | None = None):
        super().__init__()
        self.first_head = first_head
        self.num_all_heads = num_all_heads or num_kv_heads
        self.register_buffer("k_scale", torch.ones(num_kv_heads, device="cpu"), persistent=False)
        self.register_buffer("v_scale", torch.ones(num_kv_heads, device="cpu"), persistent=False)
        self.register_buffer("given", torch.full((2, num_kv_heads), torch.nan, device="cpu"), persistent=False)

    def forget_given(self) -> None:
        """Make all given scales open. The scales in use stay until `reset`."""
        self.given.fill_(torch.nan)

    def reset(self) -> bool:
        """Use the given scales, and 1 for open ones. Returns whether a scale is open. Waits for the device."""
        is_open = self.given.isnan()
        scales = torch.where(is_open, 1.0, self.given)
        self.k_scale.copy_(scales[0])
        self.v_scale.copy_(scales[1])
        return bool(is_open.any())

    def calibrate(
        self,
        qkv: Tensor,  # [T, Hq + 2 * Hkv, D]
        slot_mapping: Tensor,  # [T]
        write: Callable[[LayerCache, Tensor], object],
    ) -> None:
        """Set the open scales from the keys and values that the layer is about to write. Does not wait for the device.

        `write`, given a cache and its slots, writes the step's keys and values once more, exactly, into a cache of the
        step's size. Rows of slot -1 are left out. So this works over any ops.
        """
        num_rows, _, head_size = qkv.shape
        exact = qkv.new_zeros((2, num_rows, 1, len(self.k_scale), head_size))  # in blocks of one token
        rows = torch.arange(num_rows, device=slot_mapping.device)
        rows = torch.where(slot_mapping < 0, -1, rows)
        write(LayerCache(*exact), rows)
        largest = exact.abs().float().amax((1, 2, 4))  # [2, Hkv]
        scales = torch.stack((largest[0] / KEY_RANGE, largest[1] / VALUE_RANGE))
        scales = torch.where(scales.isfinite() & (scales > 0), scales, 1.0)
        scales = torch.where(self.given.isnan(), scales, self.given)
        self.k_scale.copy_(scales[0])
        self.v_scale.copy_(scales[1])


def kv_scales_of(model: nn.Module) -> list[KVScales]:
    """By layer; empty if the KV cache is not fp8."""
    return [module for module in model.modules() if isinstance(module, KVScales)]


def with_scales(
    caches: list[LayerCache], model: nn.Module, kinds: Sequence[LayerKind], own: Sequence[int]
) -> list[LayerCache]:
    """The layers' caches, with the model's scales for those that keep keys and values.

    `own`: the numbers of the model's layers on this worker.
    """
    all_scales = kv_scales_of(model)
    if not all_scales:
        return caches
    caches = list(caches)
    token_layers = [layer for layer in own if isinstance(kinds[layer], FullAttention | SlidingWindow)]
    for layer, scales in zip(token_layers, all_scales, strict=True):
        caches[layer] = LayerCache(caches[layer].key, caches[layer].value, scales.k_scale, scales.v_scale)
    return [caches[kind.layer] if isinstance(kind, SharedAttention) else caches[i] for i, kind in enumerate(kinds)]
