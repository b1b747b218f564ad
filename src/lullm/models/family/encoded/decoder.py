"""The decoder beside an encoder: layers that attend to their own tokens, then to the encoder's rows.

The keys and values of both are in the same cache: a layer writes those of the rows once, into the sequence's first
blocks (`Model.write_encoder`), and steps read them as a cache group of its own (`step.encoder`).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lullm.config.layer.encoder import EncoderConfig
from lullm.config.model import ModelConfig
from lullm.models.decoder import new_embedding, new_head
from lullm.models.encoder.sound import SoundEncoder
from lullm.models.encoder.text import TextEncoder
from lullm.models.protocol import Model, TileReader
from lullm.nn.attention import Attention, AttentionStyle
from lullm.nn.context import StepContext
from lullm.nn.embedding import LogitBias, PositionEmbedding
from lullm.nn.linear import FusedLinear, Linear
from lullm.nn.mlp import MLP
from lullm.nn.norm import LayerNorm
from lullm.nn.rotary import Rotary
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.table import Ops
from lullm.types.packed import unpack
from lullm.types.vision.tile import Tile
from lullm.weights.rule import Fusion, WeightRules, renames

_OWN, _CROSS = 0, 1
"""Groups of a step's attention: of a sequence's own tokens, and of the encoder's rows (`step.encoder.split`)."""


class CrossAttention(nn.Module):
    """Queries of tokens over the keys and values of an encoder's rows."""

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype):
        super().__init__()
        size = config.hidden_size
        self.layer, self.head_dim, self.scale = layer, config.head_dim, config.family.attention_scale
        self.q_proj = Linear(size, size, True, dtype)
        self.kv_proj = FusedLinear(size, (size, size), True, dtype)
        self.o_proj = Linear(size, size, True, dtype)

    def write(self, rows: Tensor, slots: Tensor, cache: LayerCache, ops: Ops) -> None:
        """Write the keys and values of `rows [P, H]` into `slots [P]`."""
        ops.write_cache(self.kv_proj(rows, ops).unflatten(-1, (-1, self.head_dim)), cache, slots)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        ops, cache = context.ops, context.caches[self.layer]
        q = self.q_proj(x, ops).unflatten(-1, (-1, self.head_dim))
        out = ops.attention(q, cache, context.attention[_CROSS], self.scale)
        return self.o_proj(out.flatten(1), ops)


class EncodedLayer(nn.Module):
    """One layer of the decoder. Norms come before attention and MLP, or behind the sums."""

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype):
        super().__init__()
        family, size, eps = config.family, config.hidden_size, config.family.rms_norm_eps
        style = AttentionStyle(scale=family.attention_scale, qkv_bias=True, o_bias=True)
        self.norms_first = family.norms_first
        self.self_attn = Attention(config, style, layer, _OWN, dtype)
        self.self_attn_layer_norm = LayerNorm(size, eps, dtype)
        self.encoder_attn = CrossAttention(config, layer, dtype)
        self.encoder_attn_layer_norm = LayerNorm(size, eps, dtype)
        self.mlp = MLP(size, family.intermediate_size, family.activation, True, dtype)
        self.final_layer_norm = LayerNorm(size, eps, dtype)

    def forward(self, x: Tensor, cos_sin_cache: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        """Overwrites `x`."""
        ops = context.ops
        parts: tuple[tuple[LayerNorm, Callable[[Tensor], Tensor]], ...] = (
            (self.self_attn_layer_norm, lambda rows: self.self_attn(rows, cos_sin_cache, context)),
            (self.encoder_attn_layer_norm, lambda rows: self.encoder_attn(rows, context)),
            (self.final_layer_norm, lambda rows: self.mlp(rows, ops)),
        )
        for norm, part in parts:
            ops.add_(x, part(norm(x, ops) if self.norms_first else x))
            if not self.norms_first:
                x = norm(x, ops)
        return x


class EncodedDecoder(nn.Module):
    """From token ids to the head's input: embeddings of tokens and positions, layers, the last norm."""

    def __init__(self, config: ModelConfig, encoder: EncoderConfig, dtype: torch.dtype, max_model_len: int):
        super().__init__()
        family, size = config.family, config.hidden_size
        self.embedding_scale = family.embedding_scale
        self.embed_tokens = new_embedding(config, size, dtype)
        num_rows = config.max_position_embeddings + encoder.num_unused_positions
        self.embed_positions = PositionEmbedding(config, num_rows, size, dtype, max_model_len)
        self.embed_norm = None if family.norms_first else LayerNorm(size, family.rms_norm_eps, dtype)
        self.layers = nn.ModuleList(EncodedLayer(config, layer, dtype) for layer in config.layers)
        self.norm = LayerNorm(size, family.rms_norm_eps, dtype) if family.norms_first else None
        self.rotary = Rotary(config, None, max_model_len)  # nothing turns

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        ops = context.ops
        x = self.embed(token_ids, ops)
        ops.add_(x, self.embed_positions(context.positions, ops))
        if self.embed_norm is not None:
            x = self.embed_norm(x, ops)
        for layer in self.layers:
            x = layer(x, self.rotary.cos_sin_cache, context)
        return x if self.norm is None else self.norm(x, ops)

    def embed(self, token_ids: Tensor, ops: Ops) -> Tensor:  # [T] -> [T, H]
        x = self.embed_tokens(token_ids, ops)
        if self.embedding_scale != 1.0:
            ops.scale_(x, self.embedding_scale)
        return x


class EncodedLM(Model):
    """An encoder, a decoder, a head."""

    def __init__(self, config: ModelConfig, style: "EncodedStyle", dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style.rules)
        encoder = config.encoder
        assert encoder is not None, "of families with an encoder"
        self.encoder = style.make_encoder(encoder, config.hidden_size, dtype)
        self.model = EncodedDecoder(config, encoder, dtype, max_model_len)
        self.lm_head = new_head(config, config.hidden_size, dtype)
        self.logit_bias = LogitBias(config.vocab_size) if style.has_logit_bias else None

    @property
    def tile_reader(self) -> TileReader:
        """See `Model.tile_reader`."""
        return self.encoder if isinstance(self.encoder, SoundEncoder) else self._read_text

    def _read_text(self, tile: Tile, device: torch.device, ops: Ops) -> Tensor:  # [1, R, H]
        token_ids = torch.tensor(unpack(tile.pixels), device=device)
        rows: Tensor = self.encoder(self.model.embed(token_ids, ops), ops)
        return rows[None]

    def write_encoder(self, rows: Tensor, slots: Tensor, caches: Sequence[LayerCache], ops: Ops) -> None:
        """See `Model.write_encoder`."""
        for layer in self.model.layers:
            assert isinstance(layer, EncodedLayer)
            layer.encoder_attn.write(rows, slots, caches[layer.encoder_attn.layer], ops)

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        """See `Model.forward`."""
        hidden: Tensor = self.model(token_ids, context)
        return hidden

    def compute_logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """See `Model.compute_logits`."""
        logits: Tensor = self.lm_head(hidden, self.model.embed_tokens, ops)
        if self.logit_bias is not None:
            self.logit_bias(logits, ops)
        return logits


@dataclass(frozen=True, slots=True)
class EncodedStyle:
    """The differences of a family.

    Args:
        make_encoder: (config, hidden size, dtype) -> the encoder.
        has_logit_bias: a learned bias is added to the logits.
    """

    rules: WeightRules
    make_encoder: Callable[[EncoderConfig, int, torch.dtype], SoundEncoder | TextEncoder]
    has_logit_bias: bool = False

    def build(self, config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> EncodedLM:
        """See `registry.Style`."""
        return EncodedLM(config, self, dtype, max_model_len)


def encoded_rules(config: ModelConfig, *first: tuple[str, str]) -> WeightRules:
    """The rules of these families; `first`: renames of one of them, before the others."""
    tied = (r"^(lm_head|proj_out)\.weight$",) if config.ties_head else ()  # a copy of the embedding
    return WeightRules(
        renames=renames(
            *first,
            (r"^(model\.)?encoder\.", "encoder."),
            (r"^(model\.)?decoder\.", "model."),
            (r"^model\.(layer_norm)\.", "model.norm."),
            (r"^(model|encoder)\.layernorm_embedding\.", r"\1.embed_norm."),
            (r"(?<=^model\.layers)(\.\d+\.(?:self|encoder)_attn\.)out_proj\.", r"\1o_proj."),
            (r"(?<=^model\.layers)(\.\d+\.)(?=fc[12]\.)", r"\1mlp."),
        ),
        fusions=(Fusion(("q_proj", "k_proj", "v_proj"), "qkv_proj"), Fusion(("k_proj", "v_proj"), "kv_proj")),
        drops=tuple(re.compile(pattern) for pattern in tied),
    )
