"""Encoders: models whose tokens see their whole text. They give hidden states, labels or scores, and no next tokens.

They are built of the decoder's parts (`models.decoder`); attention keeps nothing between steps
(`nn.attention`).
"""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.config.pooling.pooler import Classifier
from lullm.models.decoder import CausalLM, Decoder, DecoderLayer, DecoderStyle
from lullm.nn.context import StepContext
from lullm.nn.embedding import Embedding, LabelHead, PositionEmbedding, new_embedding, tanh_rows
from lullm.nn.linear import Linear, PlainLinear, meta_parameter
from lullm.nn.norm import normed
from lullm.ops.table import Ops


class PostNormLayer(DecoderLayer):
    """One layer with its norms behind the sums."""

    def forward(self, hidden: Tensor, residual: Tensor | None, context: StepContext) -> tuple[Tensor, None]:
        """`[T, H]` -> the same; there is no other stream."""
        ops = context.ops
        mixed = self.mix(hidden, context)
        hidden, _ = self.input_layernorm.add(mixed, hidden, ops)
        hidden, _ = self.post_attention_layernorm.add(self.feed(hidden, ops), hidden, ops)
        return hidden, None


class Encoder(Decoder):
    """From token ids to hidden states, without a last norm.

    The norm behind the embedding comes after learned positions, and after what tells the texts of a pair apart.
    """

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style, dtype, max_model_len)
        del self.norm
        encoder = config.family.encoder_only
        assert encoder is not None, "of a family of encoders"
        size = config.family.embedding_size or config.hidden_size
        self.embed_projection = None
        if size != config.hidden_size:
            self.embed_tokens = new_embedding(config, size, dtype)
            self.embed_norm = style.make_norm(replace(config, hidden_size=size), dtype)
            self.embed_projection = Linear(size, config.hidden_size, True, dtype)
        self.embed_positions = None
        if num_rows := encoder.num_positions:
            self.embed_positions = PositionEmbedding(config, num_rows, size, dtype, max_model_len)
        self.embed_segments = Embedding(encoder.num_segments, size, dtype) if encoder.num_segments else None
        self.tells_pairs = encoder.tells_pairs

    def run(self, hidden: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        """Run all layers."""
        return self.run_layers(hidden, context)[0]

    def embed(self, token_ids: Tensor, context: StepContext) -> Tensor:  # [T] -> [T, H]
        """See `Decoder.embed`."""
        hidden = super().embed(token_ids, context)
        return hidden if self.embed_projection is None else self.embed_projection(hidden, context.ops)

    def add_places(self, hidden: Tensor, context: StepContext) -> Tensor:
        """Positions, and which text of a pair a token is in."""
        ops = context.ops
        if self.embed_positions is not None:
            ops.add_(hidden, self.embed_positions(context.positions, ops))
        if self.embed_segments is not None:
            segments = context.segments if self.tells_pairs else None
            segments = torch.zeros_like(context.positions) if segments is None else segments
            ops.add_(hidden, self.embed_segments(segments, ops))
        return hidden


class LabelLayers(nn.Module):
    """From pooled hidden states to a number per label: the labels' matrix and bias, maybe behind a layer and a norm."""

    def __init__(self, config: ModelConfig, num_labels: int, style: DecoderStyle, dtype: torch.dtype):
        super().__init__()
        encoder, size = config.family.encoder_only, config.hidden_size
        assert encoder is not None and config.labels is not None, "of a family of encoders with labels"
        self.activation = encoder.label_activation
        has_layer = config.labels.form != "token" or encoder.has_token_layer
        self.dense = PlainLinear(size, size, encoder.has_label_bias, dtype) if has_layer else None
        self.norm = style.make_norm(config, dtype) if has_layer and encoder.has_label_norm else None
        self.labels = LabelHead(num_labels, size, dtype)
        self.bias = meta_parameter((num_labels,), dtype)

    def forward(self, pooled: Tensor, ops: Ops) -> Tensor:  # [N, H] -> [N, L] float32
        if self.dense is not None:
            inner = self.dense(pooled, ops)
            pooled = tanh_rows(inner) if self.activation == "tanh" else ops.activate(inner, self.activation)
        labels: Tensor = self.labels(normed(self.norm, pooled, ops), ops)
        return labels + self.bias.float()


class EncoderModel(CausalLM):
    """An encoder, with layers for labels if its folder has some."""

    reads_shown = False

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style, dtype, max_model_len)
        head = None if config.pooler is None else config.pooler.head
        self.head: LabelLayers | None = None
        if isinstance(head, Classifier):
            self.score = None  # the causal models' head, without a layer in front
            self.head = LabelLayers(config, head.num_labels, style, dtype)

    def pool(self, hidden: Tensor, ops: Ops) -> Tensor:
        """See `Model.pool`."""
        return super().pool(hidden, ops) if self.head is None else cast(Tensor, self.head(hidden, ops))
