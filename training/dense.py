"""The demo model as a dense autograd network: Qwen3 in plain torch, used to train and to check, never to serve.

Whole rows of tokens go through full causal attention, without a key/value cache. The module tree is laid out so that
`state_dict()` carries the tensor names of a Hugging Face Qwen3 checkpoint; the engine loads the result like any other.

Weights may stay float32 while the arithmetic runs in another dtype: every layer casts its weight to the dtype of its
input, and `hidden(..., dtype=torch.bfloat16)` sets that dtype at the embedding.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class DenseConfig:
    """Sizes of a dense Qwen3 (the fields keep the names they have in `config.json`)."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict ready to be merged into a `config.json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> DenseConfig:
        """Build from a parsed `config.json`; fields this class does not know are ignored.

        Raises KeyError when a size is missing.
        """
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__})


# Up to this length attention is two plain batched products: at 128 tokens they are three times as fast, forward and
# backward together, as the fused kernel on a CPU; at 256 they are level and above it the fused kernel wins.
_PLAIN_ATTENTION_LENGTH = 128


class _Normalize(torch.autograd.Function):
    """x / rms(x) over the last axis, statistics in float32; one backward pass instead of six small ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
        normal = (wide * scale).to(x.dtype)
        ctx.save_for_backward(normal, scale)
        return normal

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        normal, scale = ctx.saved_tensors
        wide_grad, wide_normal = grad.float(), normal.float()
        along = (wide_grad * wide_normal).mean(-1, keepdim=True)
        return ((wide_grad - wide_normal * along) * scale).to(grad.dtype), None


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis: statistics in float32, result in the input's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.to(x.dtype) * _Normalize.apply(x, self.eps)


class Linear(nn.Linear):
    """Bias-free linear layer that computes in the dtype of its input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


def rope_tables(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin, each float32 [len(positions), head_dim / 2]."""
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = positions.float()[:, None] * (1.0 / theta**steps)
    return angles.cos(), angles.sin()


class _Rotate(torch.autograd.Function):
    """Rotary embedding without the copies that autograd makes of every half; turning back is its gradient."""

    @staticmethod
    def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        low, high = x[..., :half], x[..., half:]
        out = torch.empty_like(x)
        torch.mul(low, cos, out=out[..., :half]).addcmul_(high, sin, value=-1)
        torch.mul(high, cos, out=out[..., half:]).addcmul_(low, sin)
        return out

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _Rotate._turn(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _Rotate._turn(grad, cos, -sin), None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., length, head_dim], pairing channel i with i + head_dim/2; cos and sin as `rope_tables` gives."""
    return _Rotate.apply(x, cos, sin)


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention as two batched products; q [rows, heads, length, d], k and v [rows, kv_heads, length, d]."""
    rows, heads, length, head_dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    scores = torch.matmul((q * head_dim**-0.5).reshape(rows, kv_heads, group * length, head_dim), k.transpose(-1, -2))
    later = torch.full((length, length), float("-inf"), dtype=q.dtype).triu(1)
    weights = (scores.view(rows, kv_heads, group, length, length) + later).softmax(-1)
    return torch.matmul(weights.view(rows, kv_heads, group * length, length), v).view(rows, heads, length, head_dim)


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with torch's fused kernel."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Attention(nn.Module):
    """Causal grouped-query attention with a norm on every query and key head."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.q_proj = Linear(config.hidden_size, self.heads * self.head_dim)
        self.k_proj = Linear(config.hidden_size, self.kv_heads * self.head_dim)
        self.v_proj = Linear(config.hidden_size, self.kv_heads * self.head_dim)
        self.o_proj = Linear(self.heads * self.head_dim, config.hidden_size)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(rows, length, self.heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(rows, length, self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = plain_attention(q, k, v) if length <= _PLAIN_ATTENTION_LENGTH else fused_attention(q, k, v)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))


class Mlp(nn.Module):
    """Gated feed-forward layer: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """Embedding, layers and final norm: everything a checkpoint keeps under `model.`."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class DenseQwen3(nn.Module):
    """Qwen3 language model with tied embeddings."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)

    def hidden(self, tokens: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Map token ids [rows, length] to final hidden states [rows, length, hidden_size], computed in `dtype`."""
        x = self.model.embed_tokens(tokens)
        x = x if dtype is None else x.to(dtype)
        cos, sin = rope_tables(torch.arange(tokens.shape[1]), self.config.head_dim, self.config.rope_theta)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., hidden_size] to vocabulary scores [..., vocab_size]."""
        return F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [rows, length] to scores [rows, length, vocab_size]."""
        return self.logits(self.hidden(tokens))
