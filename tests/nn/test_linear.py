"""Linear layers, the gated MLP, norms, the embedding and the head: each beside torch's own module or formula."""

import pytest
import torch
from kit.model.layers import filled
from torch.nn import functional as F

from lullm.nn.embedding import Embedding, LMHead
from lullm.nn.linear import FusedLinear, Linear
from lullm.nn.mlp import GatedMLP
from lullm.nn.norm import RMSNorm
from lullm.ops.quantized.weight import dequantize, quantize_rows_
from lullm.ops.selection import REFERENCE_OPS, TORCH_CPU_OPS

OPS = pytest.mark.parametrize("ops", [REFERENCE_OPS, TORCH_CPU_OPS], ids=lambda ops: ops.name)
X = torch.randn(5, 24, generator=torch.Generator().manual_seed(1))


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@OPS
@pytest.mark.parametrize("bias", [False, True])
def test_linear(ops, bias):
    layer = filled(Linear(24, 40, bias, torch.float32))
    assert (layer.bias is not None) == bias
    close(layer(X, ops), F.linear(X, layer.weight, layer.bias))


@OPS
def test_fused_parts_are_the_rows_of_one_matrix(ops):
    layer = filled(FusedLinear(24, (8, 16, 16), True, torch.float32))
    q, k, v = layer(X, ops).split(layer.part_sizes, dim=1)
    close(q, F.linear(X, layer.weight[:8], layer.bias[:8]))
    close(k, F.linear(X, layer.weight[8:24], layer.bias[8:24]))
    close(v, F.linear(X, layer.weight[24:], layer.bias[24:]))


@OPS
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [F.silu, F.relu], ids=lambda function: function.__name__)
def test_gated_mlp(ops, bias, activation):
    layer = filled(GatedMLP(24, 32, activation.__name__, bias, torch.float32))
    gate, up = F.linear(X, layer.gate_up_proj.weight, layer.gate_up_proj.bias).chunk(2, dim=1)
    close(layer(X, ops), F.linear(activation(gate) * up, layer.down_proj.weight, layer.down_proj.bias))


@OPS
def test_norm(ops):
    layer = filled(RMSNorm(24, 1e-5, torch.float32))
    expected = F.rms_norm(X, (24,), layer.weight, 1e-5)
    close(layer(X, ops), expected)
    close(layer(X.view(5, 1, 24), ops), expected.view(5, 1, 24))
    residual = X.flip(0)
    normed, total = layer.add(X.clone(), residual.clone(), ops)
    close(total, X + residual)
    close(normed, F.rms_norm(X + residual, (24,), layer.weight, 1e-5))


@OPS
@pytest.mark.parametrize("tied", [False, True])
def test_embedding_and_head(ops, tied):
    embedding = filled(Embedding(50, 24, torch.float32))
    token_ids = torch.tensor([3, 49, 3, 0])
    close(embedding(token_ids, ops), F.embedding(token_ids, embedding.weight))
    head = filled(LMHead(50, 24, tied, torch.float32), seed=2)
    assert len(list(head.parameters())) == (not tied)
    logits = head(X, embedding, ops)
    assert logits.dtype == torch.float32
    close(logits, X @ (embedding if tied else head).weight.T)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_a_quantized_layer_computes_with_the_weights_that_it_stores(bits, bias):
    layer = Linear(24, 40, bias, torch.float32)
    layer.quantize(bits)
    filled(layer)
    quantize_rows_(layer.weight.data, layer.layout, 0, torch.randn(40, 24))
    close(layer(X, TORCH_CPU_OPS), F.linear(X, dequantize(layer.weight, layer.layout), layer.bias))


def test_a_quantized_head_may_be_tied():
    embedding, head = Embedding(50, 24, torch.float32), LMHead(50, 24, True, torch.float32)
    embedding.quantize(8)
    filled(embedding)
    quantize_rows_(embedding.weight.data, embedding.layout, 0, torch.randn(50, 24))
    weight = dequantize(embedding.weight, embedding.layout)
    close(embedding(torch.tensor([7, 0]), TORCH_CPU_OPS), weight[[7, 0]])
    close(head(X, embedding, TORCH_CPU_OPS), X @ weight.T)


def test_a_layer_with_memory_is_not_quantized_any_more():
    with pytest.raises(AssertionError, match="not afterwards"):
        filled(Linear(24, 40, False, torch.float32)).quantize(8)
