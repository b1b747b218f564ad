"""The tower: a transformer over the patches of one tile, in which every patch sees every other.

Its matrices are plain parameters, not `nn.linear.Matrix`: they are neither quantized nor packed, and torch multiplies
them. A tile of 729 patches is a product as wide as a chunk of a prompt.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from lullm.config.vision.vision import TowerConfig, TowerNorm, VisionActivation
from lullm.nn.linear import meta_parameter

_CHANNELS = 3
_QK_NORM_EPS = 1e-6
"""Whatever the other norms have."""


def quick_gelu(x: Tensor) -> Tensor:
    """An approximation of GELU (https://arxiv.org/abs/1606.08415)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[VisionActivation, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


class Dense(nn.Module):
    """`x @ weight.T + bias`."""

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((out_features, in_features), dtype)
        self.bias = meta_parameter((out_features,), dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:  # [..., in] -> [..., out]
        return functional.linear(x, self.weight, self.bias)


class LayerNorm(nn.Module):
    """Over the last dimension."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((size,), dtype)
        self.bias = meta_parameter((size,), dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:  # [..., size] -> the same
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """Over the last dimension, by the root mean square alone; in float32 up to the weight, as where it was trained."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((size,), dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:  # [..., size] -> the same
        exact = x.float()
        return self.weight * (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


NORMS: dict[TowerNorm, type[LayerNorm] | type[RMSNorm]] = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}


class Patches(nn.Module):
    """A convolution whose stride is its width, as one product."""

    def __init__(self, config: TowerConfig, dtype: torch.dtype):
        super().__init__()
        self.size = config.patch_size
        self.weight = meta_parameter((config.hidden_size, _CHANNELS, self.size, self.size), dtype)
        self.bias = meta_parameter((config.hidden_size,), dtype) if config.has_patch_bias else None

    def forward(self, pixels: Tensor, num_sides: int) -> Tensor:  # [3, E, E] -> [num_sides^2, D]
        whole = pixels[:, : num_sides * self.size, : num_sides * self.size]  # an edge may have some pixels more
        patches = whole.reshape(_CHANNELS, num_sides, self.size, num_sides, self.size).permute(1, 3, 0, 2, 4)
        return functional.linear(patches.reshape(num_sides * num_sides, -1), self.weight.flatten(1), self.bias)


class Positions(nn.Module):
    """A learned row for each position."""

    def __init__(self, num_rows: int, size: int, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((num_rows, size), dtype)


class Embeddings(nn.Module):
    """Patches as rows, with learned positions; the row for the whole picture before them."""

    position_ids: Tensor

    def __init__(self, config: TowerConfig, edge: int, dtype: torch.dtype):
        super().__init__()
        self.num_sides = edge // config.patch_size
        self.patch_embedding = Patches(config, dtype)
        self.class_embedding = meta_parameter((config.hidden_size,), dtype) if config.has_class_row else None
        num_positions = config.num_sides**2 + config.has_class_row
        has_table = config.positions != "none"
        self.position_embedding = Positions(num_positions, config.hidden_size, dtype) if has_table else None
        self.register_buffer("position_ids", position_ids(config, self.num_sides), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:  # [3, E, E] -> [P, D]
        rows: Tensor = self.patch_embedding(pixels, self.num_sides)
        if self.class_embedding is not None:
            rows = torch.cat([self.class_embedding[None], rows])
        if self.position_embedding is None:
            return rows
        return rows + self.position_embedding.weight[self.position_ids]


def position_ids(config: TowerConfig, num_sides: int) -> Tensor:  # [P]
    """The position of each row: of a tile with fewer patches than the table has, the nearest by its share of the edge
    (https://arxiv.org/abs/2307.06304). Shares are rounded to float32, as where the table was learned."""
    num_table = config.num_sides
    if config.positions != "nearest":
        return torch.arange(num_table**2 + config.has_class_row, device="cpu")
    bounds = torch.arange(1 / num_table, 1.0, 1 / num_table, device="cpu")
    shares = torch.arange(num_sides, dtype=torch.float32, device="cpu") * (1.0 / torch.tensor(num_sides, device="cpu"))
    places = torch.bucketize(shares.clamp(max=1.0 - 1e-6), bounds, right=True)
    return (places[:, None] * num_table + places[None, :]).flatten()


class SelfAttention(nn.Module):
    """Over all rows of a tile."""

    def __init__(self, config: TowerConfig, dtype: torch.dtype):
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        has_bias = config.has_attention_bias
        self.q_proj, self.k_proj, self.v_proj = (Dense(size, size, has_bias, dtype) for _ in range(3))
        self.out_proj = Dense(size, size, True, dtype)
        self.q_norm, self.k_norm = (
            RMSNorm(size, _QK_NORM_EPS, dtype) if config.has_qk_norm else None for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:  # [P, D] -> [P, D]
        query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        heads = (
            row.view(len(x), self.num_heads, -1).transpose(0, 1)[None]  # [1, heads, P, D / heads]
            for row in (query, key, value)
        )
        mixed = functional.scaled_dot_product_attention(*heads)
        out: Tensor = self.out_proj(mixed[0].transpose(0, 1).reshape(x.shape))
        return out


class TowerMLP(nn.Module):
    def __init__(self, config: TowerConfig, dtype: torch.dtype):
        super().__init__()
        self.activation = ACTIVATIONS[config.hidden_act]
        self.fc1 = Dense(config.hidden_size, config.intermediate_size, True, dtype)
        self.fc2 = Dense(config.intermediate_size, config.hidden_size, True, dtype)

    def forward(self, x: Tensor) -> Tensor:  # [P, D] -> [P, D]
        out: Tensor = self.fc2(self.activation(self.fc1(x)))
        return out


class TowerLayer(nn.Module):
    """Norms first."""

    def __init__(self, config: TowerConfig, dtype: torch.dtype):
        super().__init__()
        size, norm = config.hidden_size, NORMS[config.norm]
        self.layer_norm1 = norm(size, config.layer_norm_eps, dtype)
        self.self_attn = SelfAttention(config, dtype)
        self.layer_norm2 = norm(size, config.layer_norm_eps, dtype)
        self.mlp = TowerMLP(config, dtype)
        self.lambda_1, self.lambda_2 = (meta_parameter((size,), dtype) if config.has_scales else None for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:  # [P, D] -> [P, D]
        x = x + _scaled(self.self_attn(self.layer_norm1(x)), self.lambda_1)
        return x + _scaled(self.mlp(self.layer_norm2(x)), self.lambda_2)


def _scaled(x: Tensor, factors: Tensor | None) -> Tensor:
    return x if factors is None else factors * x


class Tower(nn.Module):
    """The layers up to the one whose results are used."""

    def __init__(self, config: TowerConfig, edge: int, dtype: torch.dtype):
        super().__init__()
        size, eps = config.hidden_size, config.layer_norm_eps
        self.drops_first = config.drops_first
        self.embeddings = Embeddings(config, edge, dtype)
        self.pre_layernorm = LayerNorm(size, eps, dtype) if config.has_pre_norm else None
        self.layers = nn.ModuleList(TowerLayer(config, dtype) for _ in range(config.num_layers))
        self.post_layernorm = LayerNorm(size, eps, dtype) if config.has_post_norm else None

    def forward(self, pixels: Tensor) -> Tensor:  # [3, E, E] -> [P, D]
        x: Tensor = self.embeddings(pixels)
        if self.pre_layernorm is not None:
            x = self.pre_layernorm(x)
        for layer in self.layers:
            x = layer(x)
        if self.post_layernorm is not None:
            x = self.post_layernorm(x)
        return x[1:] if self.drops_first else x
