"""KVScales: the scales of one layer's fp8 KV cache, as buffers: at one address for good, and never asleep.

They come from the checkpoint, from the first batch (`calibrating_ops`), or are 1. Blocks mean something only together
with the scales they were written with, so `reset` and a calculation are allowed only while no block holds anything.
"""

import dataclasses

import torch
from torch import Tensor, nn

from lullm.ops.table import Ops

KEY_RANGE, VALUE_RANGE = 192.0, 96.0
"""Where the largest key and value of the first batch come to lie, of 448: room for larger ones to come.

About vLLM's 200 and 100. Those lie half-way between two values of e4m3, so that the last bit of the scale decided where
the largest value goes: the same model over two versions of the ops differed by 0.05 in its log-probabilities.
"""


class KVScales(nn.Module):
    """`k_scale` and `v_scale` `[Hkv]` float32 are in use; `given [2, Hkv]` is what the checkpoint says, or a trainer.

    `given` is NaN where nobody says anything: those scales are 1, or calculated.
    """

    k_scale: Tensor
    v_scale: Tensor
    given: Tensor

    def __init__(self, num_kv_heads: int):
        super().__init__()
        self.register_buffer("k_scale", torch.ones(num_kv_heads, device="cpu"), persistent=False)
        self.register_buffer("v_scale", torch.ones(num_kv_heads, device="cpu"), persistent=False)
        self.register_buffer("given", torch.full((2, num_kv_heads), torch.nan, device="cpu"), persistent=False)

    def forget_given(self) -> None:
        """As if nobody had said anything; what is in use stays until `reset`."""
        self.given.fill_(torch.nan)

    def reset(self) -> bool:
        """Use what is given, and 1 for the rest. Returns whether there is a rest. Waits for the device."""
        is_open = self.given.isnan()
        scales = torch.where(is_open, 1.0, self.given)
        self.k_scale.copy_(scales[0])
        self.v_scale.copy_(scales[1])
        return bool(is_open.any())


def calibrating_ops(ops: Ops, model: nn.Module) -> Ops:
    """The same ops for one step that finds the scales which nobody gave: each layer's from the keys and values that it
    is about to write. Does not wait for the device.

    A layer's keys and values are written twice: as they are into a cache of this step's size, for the largest of each
    head to be found, then with their scales. So it works over any ops, and the model does not notice.
    """
    layers = {layer.k_scale.data_ptr(): layer for layer in model.modules() if isinstance(layer, KVScales)}

    def rope_and_cache(
        qkv: Tensor,
        q_norm_weight: Tensor | None,
        k_norm_weight: Tensor | None,
        eps: float,
        positions: Tensor,
        cos_sin_cache: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slot_mapping: Tensor,
        key_scales: Tensor | None,
        value_scales: Tensor | None,
    ) -> Tensor:
        assert key_scales is not None and value_scales is not None, "an fp8 cache has scales"
        before = qkv, q_norm_weight, k_norm_weight, eps, positions, cos_sin_cache
        num_rows, _, head_size = qkv.shape
        exact = qkv.new_zeros((2, num_rows, 1, len(key_scales), head_size))  # of blocks of one token
        rows = torch.arange(num_rows, device=slot_mapping.device)
        ops.rope_and_cache(*before, exact[0], exact[1], torch.where(slot_mapping < 0, -1, rows), None, None)
        largest = exact.abs().float().amax((1, 2, 4))  # [2, Hkv]; rows that are written nowhere are zeros
        scales = torch.stack((largest[0] / KEY_RANGE, largest[1] / VALUE_RANGE))
        scales = torch.where(scales.isfinite() & (scales > 0), scales, 1.0)
        given = layers[key_scales.data_ptr()].given
        scales = torch.where(given.isnan(), scales, given)
        key_scales.copy_(scales[0])
        value_scales.copy_(scales[1])
        return ops.rope_and_cache(*before, key_cache, value_cache, slot_mapping, key_scales, value_scales)

    return dataclasses.replace(ops, name=f"{ops.name}, calibrating", rope_and_cache=rope_and_cache)
