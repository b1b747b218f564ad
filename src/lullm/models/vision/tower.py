"""The tower: a transformer over the patches of one tile."""

import torch
from torch import Tensor, nn

from lullm.config.vision.vision import TowerConfig
from lullm.models.vision.attention import SelfAttention, Sight, rotation_of, seen_first, windows_of
from lullm.models.vision.embedding import Embeddings
from lullm.models.vision.parts import NORMS, activate, tower_matrix
from lullm.nn.linear import meta_parameter
from lullm.nn.norm import normed
from lullm.ops.table import Ops


class TowerMLP(nn.Module):
    """Two matrices, or three with a gate."""

    def __init__(self, config: TowerConfig, dtype: torch.dtype):
        super().__init__()
        self.activation = config.hidden_act
        self.is_gated = config.is_gated
        if config.is_gated:
            self.gate_proj = tower_matrix(config, config.hidden_size, config.intermediate_size, config.has_bias, dtype)
        self.fc1 = tower_matrix(config, config.hidden_size, config.intermediate_size, config.has_bias, dtype)
        self.fc2 = tower_matrix(config, config.intermediate_size, config.hidden_size, config.has_bias, dtype)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [P, D] -> [P, D]
        inner: Tensor = self.fc1(x, ops)
        if self.is_gated:
            ops.multiply_(inner, activate(self.gate_proj(x, ops), self.activation, ops), None)
        else:
            inner = activate(inner, self.activation, ops)
        out: Tensor = self.fc2(inner, ops)
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
        self.result_norm1, self.result_norm2 = (
            norm(size, config.layer_norm_eps, dtype) if config.has_result_norms else None for _ in range(2)
        )

    def add_(self, x: Tensor, sight: Sight, ops: Ops) -> None:  # [P, D]
        """Add the layer's results to its rows."""
        mixed = _scaled(self.self_attn(self.layer_norm1(x, ops), sight, ops), self.lambda_1)
        ops.add_(x, normed(self.result_norm1, mixed, ops))
        fed = _scaled(self.mlp(self.layer_norm2(x, ops), ops), self.lambda_2)
        ops.add_(x, normed(self.result_norm2, fed, ops))


def _scaled(x: Tensor, factors: Tensor | None) -> Tensor:
    return x if factors is None else factors * x


class Tower(nn.Module):
    """The layers up to the one whose results are used."""

    frequencies: Tensor | None

    def __init__(self, config: TowerConfig, edge: int, dtype: torch.dtype):
        super().__init__()
        size, eps = config.hidden_size, config.layer_norm_eps
        self.config = config
        self.embeddings = Embeddings(config, edge, dtype)
        self.pre_layernorm = NORMS[config.norm](size, eps, dtype) if config.has_pre_norm else None
        self.layers = nn.ModuleList(TowerLayer(config, dtype) for _ in range(config.num_layers))
        self.post_layernorm = None if config.post_norm is None else NORMS[config.post_norm](size, eps, dtype)
        frequencies = None
        if config.rope_theta:
            half = size // config.num_attention_heads // 2
            numbers = torch.arange(0, half, 2, device="cpu").expand(2, -1)
            if config.alternates:
                numbers = numbers + torch.tensor([[0], [1]], device="cpu")
            frequencies = 1.0 / config.rope_theta ** (numbers / half)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(
        self, pixels: Tensor, ops: Ops, seen: tuple[int, int] | None = None
    ) -> list[Tensor]:  # [F, 3, height, width] -> [P, D] each
        """The results of the last layer, then those of `deep_layers`. F: as many frames as are read at once, or 1.

        `seen`: no row sees patches behind so many lines and columns.
        """
        x = normed(self.pre_layernorm, self.embeddings(pixels, ops, seen), ops)
        lines, columns = (length // self.config.patch_size for length in pixels.shape[2:])
        rotation = None if self.frequencies is None else rotation_of(lines, columns, self.frequencies)
        sight, order = Sight((), rotation), None
        if self.config.window:
            order, windows = windows_of(lines, columns, self.config.window)
            sight = Sight(windows, None if rotation is None else rotation[order.to(rotation.device)])
        elif seen is not None and seen != (lines, columns):
            order, sight = seen_first(lines, columns, seen), Sight(num_seen=seen[0] * seen[1])
        if order is not None:
            order = order.to(x.device)
            x = x[order]
        deep = []
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, TowerLayer)
            layer.add_(x, sight.without_windows() if number in self.config.full_layers else sight, ops)
            if number in self.config.deep_layers:
                deep.append(x.clone())
        results = [normed(self.post_layernorm, x, ops), *deep]
        if order is not None:
            results = [torch.empty_like(rows).index_copy_(0, order, rows) for rows in results]
        return [rows[1:] for rows in results] if self.config.drops_first else results
