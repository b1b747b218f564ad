"""Conformer: from the features of a sound to rows; ConformerReader: to rows of the decoder (Phi-4-multimodal)."""

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lullm.config.hearing.hearing import HearingConfig
from lullm.config.layer.conformer import ConformerConfig
from lullm.models.vision.embedding import Positions
from lullm.models.vision.parts import dense
from lullm.nn.linear import meta_parameter
from lullm.nn.norm import LayerNorm
from lullm.ops.attention_layout import MutualScores
from lullm.ops.table import Ops
from lullm.types.vision.tile import EDGE_FRAMES, Tile
from lullm.units import round_up

_EPS = 1e-5
_WIDTH = 3
"""Frames and bands that one of the first convolutions sees."""
_ROWS_AT_ONCE = 100
"""Rows whose first convolutions are computed together: 66 MB of numbers with 1,024 channels."""


class Convolution(nn.Module):
    """Parameters alone. `shape`: behind the numbers of results and inputs."""

    def __init__(self, num_outputs: int, num_inputs: int, shape: tuple[int, ...], dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((num_outputs, num_inputs, *shape), dtype)
        self.bias = meta_parameter((num_outputs,), dtype)

    def rows(self, x: Tensor) -> Tensor:  # [R, in] -> [R, out]
        """Of a convolution that sees one row."""
        return functional.linear(x, self.weight.flatten(1), self.bias)


class Stem(nn.Module):
    """Convolutions over frames and bands, each of which takes every other one of both."""

    def __init__(self, config: ConformerConfig, size: int, dtype: torch.dtype):
        super().__init__()
        self.activation, self.stride, channels = config.stem_activation, config.stride, config.num_channels
        num_bands, layers = config.num_mels, dict[str, nn.Module]()
        for number in range(int(math.log2(config.stride))):
            first = 0 if not number else 3 * number - 1  # names of a checkpoint count activations
            layers[str(first)] = Convolution(channels, 1, (_WIDTH, _WIDTH), dtype)
            if number:
                layers[str(first + 1)] = Convolution(channels, channels, (1, 1), dtype)
            num_bands = (num_bands + 1) // 2
        self.conv = nn.ModuleDict(layers)
        self.out = dense(channels * num_bands, size, True, dtype)

    def forward(self, features: Tensor, ops: Ops) -> Tensor:  # [frames, bands] -> [R, H]
        num_rows = -(-len(features) // self.stride)
        parts = []
        for first in range(0, num_rows, _ROWS_AT_ONCE):
            # One row more in front, as its convolutions see nothing of what lies before.
            start, end = max(first - 1, 0), min(first + _ROWS_AT_ONCE, num_rows)
            rows = self._convolved(features[start * self.stride : end * self.stride], ops)
            parts.append(self.out(rows[first - start :], ops))
        return torch.cat(parts)

    def _convolved(self, features: Tensor, ops: Ops) -> Tensor:  # [frames, bands] -> [R, channels * bands / stride]
        x = features[None]
        for name, layer in self.conv.items():
            assert isinstance(layer, Convolution)
            is_point = layer.weight.shape[-1] == 1
            if is_point:
                x = functional.conv2d(x, layer.weight, layer.bias)
            else:
                x = functional.conv2d(x, layer.weight, layer.bias, 2, _WIDTH // 2, groups=len(x))
            if name == "0" or is_point:
                x = ops.activate(x.flatten(1), self.activation).view_as(x)
        return x.transpose(0, 1).flatten(1)


class HalfMLP(nn.Module):
    """With gates; results count by half."""

    def __init__(self, config: ConformerConfig, size: int, dtype: torch.dtype):
        super().__init__()
        self.activation = config.activation
        self.layer_norm = LayerNorm(size, _EPS, dtype)
        self.fc1 = dense(size, 2 * config.intermediate_size, True, dtype)
        self.fc2 = dense(config.intermediate_size, size, True, dtype)

    def add_(self, x: Tensor, ops: Ops) -> None:
        values, gates = self.fc1(self.layer_norm(x, ops), ops).chunk(2, -1)
        x.add_(self.fc2(values * ops.activate(gates.contiguous(), self.activation), ops), alpha=0.5)


class BiasedAttention(nn.Module):
    """Without a mask."""

    def __init__(self, config: ConformerConfig, size: int, dtype: torch.dtype):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (dense(size, size, True, dtype) for _ in range(4))

    def forward(self, x: Tensor, bias: Tensor, ops: Ops) -> Tensor:  # [R, H], [heads, R, R] -> [R, H]
        projected: list[Tensor] = [project(x, ops) for project in (self.q_proj, self.k_proj, self.v_proj)]
        query, key, value = (rows.unflatten(-1, (self.num_heads, -1)) for rows in projected)
        scores = MutualScores(query.shape[-1] ** -0.5, bias=bias)
        out: Tensor = self.out_proj(ops.mutual_attention(query, key, value, [len(x)], scores).flatten(1), ops)
        return out


class GatedConvolution(nn.Module):
    """Each element over its rows, between layers over elements, the first with gates."""

    def __init__(self, config: ConformerConfig, size: int, dtype: torch.dtype):
        super().__init__()
        self.gate_activation, self.activation = config.gate_activation, config.conv_activation
        self.layer_norm = LayerNorm(size, _EPS, dtype)
        self.gated = Convolution(2 * size, size, (1,), dtype)
        self.value_bias, self.gate_bias = (meta_parameter((size,), dtype) for _ in range(2))
        num_filtered = size * config.num_filters
        self.by_element = Convolution(num_filtered, 1, (config.kernel_size,), dtype)
        self.mixed = Convolution(size, num_filtered, (1,), dtype)
        self.result = Convolution(size, size, (1,), dtype)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [R, H] -> [R, H]
        values, gates = self.gated.rows(self.layer_norm(x, ops)).chunk(2, -1)
        x = (values + self.value_bias) * ops.activate(gates + self.gate_bias, self.gate_activation)
        own = self.by_element
        before = own.weight.shape[-1] - 1
        filtered = functional.conv1d(functional.pad(x.T, (before, 0)), own.weight, own.bias, groups=x.shape[1])
        return self.result.rows(ops.activate(self.mixed.rows(filtered.T), self.activation))


class ConformerLayer(nn.Module):
    """Adds to its rows four times, and normalizes their sum."""

    def __init__(self, config: ConformerConfig, size: int, dtype: torch.dtype):
        super().__init__()
        self.feed_forward_in, self.feed_forward_out = (HalfMLP(config, size, dtype) for _ in range(2))
        self.layer_norm_att, self.layer_norm = (LayerNorm(size, _EPS, dtype) for _ in range(2))
        self.self_attn = BiasedAttention(config, size, dtype)
        self.conv = GatedConvolution(config, size, dtype)

    def forward(self, x: Tensor, bias: Tensor, ops: Ops) -> Tensor:  # [R, H] -> [R, H]
        """Overwrites `x`."""
        self.feed_forward_in.add_(x, ops)
        ops.add_(x, self.self_attn(self.layer_norm_att(x, ops), bias, ops))
        ops.add_(x, self.conv(x, ops))
        self.feed_forward_out.add_(x, ops)
        return self.layer_norm(x, ops)


class Conformer(nn.Module):
    """Features are brought to a known mean and size first."""

    def __init__(self, config: ConformerConfig, size: int, dtype: torch.dtype):
        super().__init__()
        self.config, self.dtype = config, dtype
        self.mean, self.factor = (meta_parameter((config.num_mels,), dtype) for _ in range(2))
        self.embed = Stem(config, size, dtype)
        self.distances = Positions((2 * config.max_distance, config.num_attention_heads), dtype)
        self.layers = nn.ModuleList(ConformerLayer(config, size, dtype) for _ in range(config.num_layers))

    def forward(self, tile: Tile, device: torch.device, ops: Ops) -> Tensor:  # [R, H]
        """The rows of a sound. They see those of their own part, and zeros behind the last one of several."""
        features = np.frombuffer(tile.pixels, np.float32).reshape(tile.height, tile.width)[:, :-EDGE_FRAMES]
        x = torch.from_numpy(features.T.copy()).to(device, self.dtype)
        x = self.embed((x - self.mean) * self.factor, ops)
        num_rows, most = len(x), self.config.max_rows
        if num_rows > most:
            x = functional.pad(x, (0, 0, 0, round_up(num_rows, most) - num_rows))
        parts, bias = list(x.split(most)), self._bias(min(num_rows, most), device)
        for layer in self.layers:
            parts = [layer(part, bias, ops) for part in parts]
        return torch.cat(parts)[:num_rows]

    def _bias(self, num_rows: int, device: torch.device) -> Tensor:  # [heads, R, R]
        places, most = torch.arange(num_rows, device=device), self.config.max_distance
        distances = (places[None] - places[:, None]).clamp(-most, most - 1)
        return self.distances.weight[distances + most].permute(2, 0, 1).contiguous()


class TwoLayers(nn.Module):
    """With GELU between them."""

    def __init__(self, size: int, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.linear_1, self.linear_2 = (
            dense(size, hidden_size, True, dtype),
            dense(hidden_size, hidden_size, True, dtype),
        )

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [R, D] -> [R, H]
        out: Tensor = self.linear_2(ops.activate(self.linear_1(x, ops), "gelu"), ops)
        return out


class ConformerReader(nn.Module):
    """The encoder and its connectors: one for sounds alone, one for those beside pictures."""

    def __init__(self, config: HearingConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        assert isinstance(config.encoder, ConformerConfig)
        self.tower = Conformer(config.encoder, config.encoder_size, dtype)
        self.connector, self.beside_pictures = (TwoLayers(config.encoder_size, hidden_size, dtype) for _ in range(2))

    def forward(self, tile: Tile, device: torch.device, ops: Ops) -> Tensor:
        """The rows of a sound, on the device: `[1, R, H]`, see `ShownRows`."""
        rows = self.tower(tile, device, ops)
        connector = self.beside_pictures if tile.is_beside_pictures else self.connector
        out: Tensor = connector(rows, ops)[None]
        return out
