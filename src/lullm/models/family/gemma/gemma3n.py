"""Gemma 3n, text (https://ai.google.dev/gemma/docs/gemma-3n): E2B and E4B.

As in Gemma 4's small models, each layer has its own embedding of tokens, and the last layers share keys and values. In
addition there are four residual streams (`nn.altup`), and the MLPs of the first layers drop most of their gates.
"""

import re

import torch
from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, LayerSpec, gated_mlp
from lullm.models.family.gemma.gemma4 import Gemma4Decoder, InputLayer, rules_of_shared, stage_cuts
from lullm.nn.altup import AltUp, LearnedResidual, StreamProjections
from lullm.nn.context import StepContext
from lullm.nn.mlp import CutGatedMLP
from lullm.ops.table import Ops
from lullm.weights.rule import Scale


def _mlp(config: ModelConfig, layer: int, dtype: torch.dtype) -> nn.Module:
    family = config.family
    cutoff = family.gate_cutoffs[layer]
    if cutoff is None:
        return gated_mlp(config, layer, dtype)
    num_shares = 1 if config.share is None else config.share.axis.size
    sizes = config.hidden_size, family.inner_size(layer)
    return CutGatedMLP(*sizes, family.activation, False, dtype, cutoff, num_shares)


class Gemma3nLayer(InputLayer):
    """One layer, under the checkpoint's names."""

    def __init__(self, spec: LayerSpec):
        super().__init__(spec)
        family, hidden_size = spec.config.family, spec.config.hidden_size
        assert family.altup is not None, "of this family"
        self.num_streams, self.active = family.altup.num_streams, family.altup.active
        self.altup = AltUp(family.altup, hidden_size, family.rms_norm_eps, spec.dtype)
        self.laurel = LearnedResidual(family.altup.laurel_rank, hidden_size, family.rms_norm_eps, spec.dtype)

    def forward(self, hidden: Tensor, residual: Tensor | None, context: StepContext) -> tuple[Tensor, None]:
        """`hidden`: `[T, A * H]`, all residual streams."""
        ops = context.ops
        streams = self.altup.predict(hidden.unflatten(-1, (self.num_streams, -1)), ops)  # [T, A, H]
        active = streams[:, self.active].clone()
        normed = self.input_layernorm(active, ops)
        learned = self.laurel(normed, ops)
        ops.add_(active, self.post_attention_layernorm(self.mix(normed, context), ops))
        ops.add_(active, learned)
        ops.scale_(active, 2**-0.5)
        fed = self.feed(self.pre_feedforward_layernorm(active, ops), ops)
        ops.add_(active, self.post_feedforward_layernorm(fed, ops))
        scaled = self.altup.correct_(streams, active, ops)
        streams[:, 1:] += self.of_inputs(scaled, context).unsqueeze(1)
        return streams.flatten(1), None


class Gemma3nDecoder(Gemma4Decoder):
    """A decoder whose streams are made from the embedding, and joined before the last norm."""

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style, dtype, max_model_len)
        altup, inputs = config.family.altup, config.family.layer_inputs
        assert altup is not None and inputs is not None, "of this family"
        self.num_streams, self.num_embedded = altup.num_streams, inputs.vocab_size
        if self.stage.is_first:
            self.altup_projections = StreamProjections(altup.num_streams, config.hidden_size, dtype)
        if self.stage.is_last:
            self.altup_unembed_projections = StreamProjections(altup.num_streams, config.hidden_size, dtype)

    def run(self, hidden: Tensor, context: StepContext) -> Tensor:
        ops = context.ops
        if self.stage.is_first:
            hidden = self.altup_projections.spread(hidden, ops).flatten(1)
        streams, _ = self.run_layers(hidden, context)
        if not self.stage.is_last:
            return streams
        joined = self.altup_unembed_projections.join(streams.unflatten(-1, (self.num_streams, -1)), ops)
        return self.norm(joined, ops)

    def _layer_inputs(self, token_ids: Tensor, common: Tensor, ops: Ops) -> Tensor:
        """Tokens of pictures and sounds, after those that layers embed, use the first token's row."""
        known = token_ids.where(token_ids < self.num_embedded, 0)
        return super()._layer_inputs(known, common, ops)


def gemma3n_style(config: ModelConfig) -> DecoderStyle:
    routers = Scale(re.compile(r"\.altup\.router_norm\.weight$"), 1 / config.hidden_size)
    return DecoderStyle(
        rules=rules_of_shared(config).plus(scales=(routers,)),
        qk_norm="heads",
        make_mlp=_mlp,
        make_layer=Gemma3nLayer,
        make_decoder=Gemma3nDecoder,
        cuts=stage_cuts(config),
    )
