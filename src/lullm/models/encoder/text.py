"""TextEncoder: from embedded tokens to rows (BART, https://arxiv.org/abs/1910.13461)."""

import torch
from torch import Tensor, nn

from lullm.config.layer.encoder import EncoderConfig
from lullm.models.encoder.layers import EncoderLayer
from lullm.nn.embedding import Embedding
from lullm.nn.norm import LayerNorm
from lullm.ops.table import Ops


class TextEncoder(nn.Module):
    """Learned positions, a norm, layers. Embeddings are the decoder's."""

    def __init__(self, config: EncoderConfig, size: int, dtype: torch.dtype):
        super().__init__()
        self.embed_positions = Embedding(config.max_rows + config.num_unused_positions, size, dtype)
        self.embed_norm = LayerNorm(size, config.layer_norm_eps, dtype)
        self.layers = nn.ModuleList(EncoderLayer(config, size, dtype) for _ in range(config.num_layers))

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [R, H] -> [R, H]
        """Overwrites `x`."""
        ops.add_(x, self.embed_positions(torch.arange(len(x), device=x.device), ops))
        x = self.embed_norm(x, ops)
        for layer in self.layers:
            x = layer(x, ops)
        return x
