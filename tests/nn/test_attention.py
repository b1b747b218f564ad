"""The attention layer over a paged cache beside torch's dense attention, in one step and in several."""

import pytest
import torch
from kit.model.layers import filled
from torch.nn import functional as F

from lullm.config.model import ModelConfig
from lullm.nn.attention import Attention, AttentionStyle
from lullm.nn.context import StepContext
from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.selection import REFERENCE_OPS, TORCH_CPU_OPS

HIDDEN, HEAD_DIM, HEADS, KV_HEADS, BLOCK_SIZE, LEN = 32, 8, 4, 2, 4, 11
EPS = 1e-6
CONFIG = ModelConfig.from_dict(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 10,
        "hidden_size": HIDDEN,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 64,
    }
)
BLOCKS = [5, 0, 3]  # of a pool of 6, in the sequence's order


def angles():  # [LEN, D / 2]
    return torch.arange(LEN)[:, None] / 10_000 ** (torch.arange(HEAD_DIM // 2) * 2 / HEAD_DIM)


def rotate(heads):  # [LEN, H, D] -> the same
    turns = torch.polar(torch.ones(LEN, HEAD_DIM // 2), angles())[:, None]
    first, second = heads.chunk(2, dim=-1)
    turned = torch.complex(first, second) * turns
    return torch.cat((turned.real, turned.imag), dim=-1)


def dense(layer, x):
    """Causal attention without a cache, by torch."""
    sizes = layer.qkv_proj.part_sizes
    qkv = F.linear(x, layer.qkv_proj.weight, layer.qkv_proj.bias).split(sizes, dim=1)
    q, k, v = (part.unflatten(1, (-1, HEAD_DIM)) for part in qkv)
    if layer.q_norm is not None:
        q = F.rms_norm(q, (HEAD_DIM,), layer.q_norm.weight, EPS)
        k = F.rms_norm(k, (HEAD_DIM,), layer.k_norm.weight, EPS)
    q, k, v = (heads.transpose(0, 1) for heads in (rotate(q), rotate(k), v))
    out = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
    return F.linear(out.transpose(0, 1).flatten(1), layer.o_proj.weight, layer.o_proj.bias)


def paged(layer, x, ops, chunks):
    """The same positions in steps of these sizes, through the blocks of a cache that starts as NaN."""
    cache = LayerCache(*torch.full((2, 6, BLOCK_SIZE, KV_HEADS, HEAD_DIM), float("nan")))
    cos_sin_cache = torch.cat((angles().cos(), angles().sin()), dim=1)
    outputs, start = [], 0
    for size in chunks:
        positions = torch.arange(start, start + size)
        slots = torch.tensor([BLOCKS[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in positions.tolist()])
        step = AttentionLayout([size], [start + size], torch.tensor([BLOCKS]), slots, BLOCK_SIZE)
        context = StepContext(
            positions, (ops.prepare_attention(DeviceLayout.of(step)),), (cache,), ops, {0: cos_sin_cache}
        )
        outputs.append(layer(x[start : start + size], context))
        start += size
    return torch.cat(outputs)


@pytest.mark.parametrize("ops", [REFERENCE_OPS, TORCH_CPU_OPS], ids=lambda ops: ops.name)
@pytest.mark.parametrize("chunks", [[LEN], [4, 1, 6], [1] * LEN], ids=["at once", "in chunks", "one by one"])
@pytest.mark.parametrize(("qk_norm", "bias"), [(True, False), (False, True), (False, False)])
def test_paged_attention_is_dense_attention(ops, chunks, qk_norm, bias):
    style = AttentionStyle(CausalScores(HEAD_DIM**-0.5), "heads" if qk_norm else None, EPS, qkv_bias=bias, o_bias=bias)
    layer = filled(Attention(CONFIG, style, 0, 0, torch.float32))
    x = torch.randn(LEN, HIDDEN, generator=torch.Generator().manual_seed(3)) / 4
    torch.testing.assert_close(paged(layer, x, ops, chunks), dense(layer, x), rtol=1e-4, atol=1e-4)
