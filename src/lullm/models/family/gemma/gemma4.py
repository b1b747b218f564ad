"""Gemma 4, text (https://ai.google.dev/gemma/docs/core/model_card_4).

As Gemma 3, with different layers. Those with full attention have wider heads; their values may be the keys before the
norm. The last layers may share the keys and values of earlier ones, and have a wider MLP. Every layer may have its own
embedding of tokens and experts beside its MLP, and ends with a learned factor.
"""

import re
from dataclasses import replace

import torch
from torch import Tensor

from lullm.config.model import ModelConfig
from lullm.models.decoder import Decoder, DecoderStyle, LayerSpec, new_norm
from lullm.models.family.gemma.gemma3 import GemmaLayer
from lullm.models.rules import rules_of
from lullm.nn.context import StepContext
from lullm.nn.embedding import Embedding, new_embedding
from lullm.nn.experts import MixtureOfExperts
from lullm.nn.linear import Linear, meta_parameter
from lullm.nn.norm import RMSNorm
from lullm.ops.table import Ops
from lullm.types.layer_kind import SharedAttention
from lullm.weights.rows.cut import Cut, Run
from lullm.weights.rule import Fusion, Scale, Stack, WeightRules, renames

RENAMES = renames(
    (r"(?<=\.)router\.scale$", "router_norm.weight"),
    (r"(?<=\.)router\.proj\.", "moe.gate."),
    (r"(?<=\.)router\.per_expert_scale$", "moe.gate.per_expert_scale"),
    (r"(?<=\d\.)experts\.", "moe.experts."),
)
STACKS = (
    Stack("experts", "gate_up_proj", ("gate_proj.weight", "up_proj.weight"), takes_turns=False),
    Stack("experts", "down_proj", ("down_proj.weight",)),
)


class InputLayer(GemmaLayer):
    """A layer that may have its own embedding of the tokens, under the checkpoint's names."""

    def __init__(self, spec: LayerSpec):
        super().__init__(spec)
        inputs, hidden_size = spec.config.family.layer_inputs, spec.config.hidden_size
        self.number = spec.number - spec.config.layers.start  # among those of the stage
        self.activation = spec.config.family.activation
        self.has_inputs = inputs is not None
        if inputs is not None:
            self.per_layer_input_gate = Linear(hidden_size, inputs.size, False, spec.dtype)
            self.per_layer_projection = Linear(inputs.size, hidden_size, False, spec.dtype)
            self.post_per_layer_input_norm = new_norm(spec.config, spec.dtype)

    def of_inputs(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        """The contribution of the layer's own embedding of the tokens."""
        assert context.layer_inputs is not None, "the decoder has made them"
        ops = context.ops
        gate = ops.activate(self.per_layer_input_gate(x, ops), self.activation)
        ops.multiply_(gate, context.layer_inputs[:, self.number], None)
        return self.post_per_layer_input_norm(self.per_layer_projection(gate, ops), ops)


class Gemma4Layer(InputLayer):
    """One layer, under the checkpoint's names."""

    def __init__(self, spec: LayerSpec):
        super().__init__(spec)
        family = spec.config.family
        self.layer_scalar = meta_parameter((1,), spec.dtype)
        self.has_experts = family.experts is not None
        if family.experts is not None:
            self.moe = MixtureOfExperts(family.experts, spec.config.hidden_size, family.activation, spec.dtype)
            self.router_norm = new_norm(spec.config, spec.dtype)
            self.post_feedforward_layernorm_1 = new_norm(spec.config, spec.dtype)
            self.post_feedforward_layernorm_2 = new_norm(spec.config, spec.dtype)
            self.pre_feedforward_layernorm_2 = new_norm(spec.config, spec.dtype)

    def forward(self, hidden: Tensor, residual: Tensor | None, context: StepContext) -> tuple[Tensor, None]:
        """`hidden`: all of the residual stream."""
        ops = context.ops
        hidden, stream = self.norm_input(hidden, residual, ops)
        hidden = self.mix(hidden, context)
        hidden = self.post_attention_layernorm(hidden, ops)
        hidden, stream = self.pre_feedforward_layernorm.add(hidden, stream, ops)
        hidden = self.feed(hidden, ops)
        if self.has_experts:
            hidden = self.post_feedforward_layernorm_1(hidden, ops)
            ops.add_(hidden, self._mixed(stream, ops))
        ops.add_(stream, self.post_feedforward_layernorm(hidden, ops))
        if self.has_inputs:
            ops.add_(stream, self.of_inputs(stream, context))
        ops.scale_by_(stream, self.layer_scalar)
        return stream, None

    def _mixed(self, stream: Tensor, ops: Ops) -> Tensor:
        """The experts' result. Router and experts read the stream through their own norms."""
        routes = self.moe.gate.choose(self.router_norm(stream, ops), ops)
        mixed = ops.experts(self.pre_feedforward_layernorm_2(stream, ops), routes, self.moe.weights, None, None)
        ops.all_reduce_(mixed)
        return self.post_feedforward_layernorm_2(mixed, ops)


class Gemma4Decoder(Decoder):
    """A decoder with inputs per layer: an embedding of the tokens, and a projection of the common one.

    Every stage of a pipeline computes the inputs of its own layers from token ids. So each has a part of E2B's 4.7 GB
    of such embeddings, and a row between stages is 1,536 elements wide, not 10,496.
    """

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style, dtype, max_model_len)
        inputs, hidden_size = config.family.layer_inputs, config.hidden_size
        self.input_size = 0 if inputs is None else inputs.size
        self.pad_token_id = 0 if inputs is None else inputs.pad_token_id
        if inputs is not None:
            if not hasattr(self, "embed_tokens"):
                self.embed_tokens = new_embedding(config, hidden_size, dtype)
            width = inputs.size * len(config.layers)
            self.embed_tokens_per_layer = Embedding(inputs.vocab_size, width, dtype)
            self.per_layer_model_projection = Linear(hidden_size, width, False, dtype)
            self.per_layer_projection_norm = RMSNorm(inputs.size, config.family.rms_norm_eps, dtype)
            self.input_scale = torch.tensor(inputs.size**0.5, dtype=dtype, device="cpu").item()
            self.projection_scale = hidden_size**-0.5

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        hidden = self.embed(token_ids, context)
        if self.input_size:
            common = self.embed(token_ids, replace(context, stream=None)) if self.stage.rank else hidden
            for rows in context.shown:  # a layer's own embedding knows no rows of pictures
                token_ids = rows.without(token_ids, self.pad_token_id)
            context = replace(context, layer_inputs=self._layer_inputs(token_ids, common, context.ops))
        return self.run(hidden, context)

    def _layer_inputs(self, token_ids: Tensor, common: Tensor, ops: Ops) -> Tensor:  # [T], [T, H] -> [T, L, P]
        embedded = self.embed_tokens_per_layer(token_ids, ops)  # [T, L * P]
        ops.scale_(embedded, self.input_scale)
        projected = self.per_layer_model_projection(common, ops)
        ops.scale_(projected, self.projection_scale)
        inputs = self.per_layer_projection_norm(projected.view(-1, self.input_size), ops)  # [T * L, P]
        ops.add_(inputs, embedded.view(-1, self.input_size))
        ops.scale_(inputs, 2**-0.5)
        return inputs.view(len(token_ids), -1, self.input_size)


def gemma4_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(
        rules=_rules(config),
        qk_norm="heads",
        make_layer=Gemma4Layer,
        make_decoder=Gemma4Decoder,
        cuts=stage_cuts(config),
    )


def stage_cuts(config: ModelConfig) -> dict[str, Cut]:
    """A stage's parts of the tensors that have a part for every layer."""
    inputs, layers = config.family.layer_inputs, config.layers
    if inputs is None or len(layers) == config.num_hidden_layers:
        return {}
    width = inputs.size * config.num_hidden_layers
    own = (Run(layers.start * inputs.size, 0, len(layers) * inputs.size),)
    return {
        "model.embed_tokens_per_layer.weight": Cut(torch.Size((inputs.vocab_size, width)), 1, own),
        "model.per_layer_model_projection.weight": Cut(torch.Size((width, config.hidden_size)), 0, own),
    }


def rules_of_shared(config: ModelConfig) -> WeightRules:
    """The common rules, also for files with keys and values of layers that share those of others."""
    shared = [str(layer) for layer, kind in enumerate(config.layer_kinds) if isinstance(kind, SharedAttention)]
    drops = [re.compile(rf"\.layers\.({'|'.join(shared)})\.self_attn\.[kv]_(proj|norm)\.")] if shared else []
    return rules_of(config).plus(drops=tuple(drops))


def _rules(config: ModelConfig) -> WeightRules:
    return rules_of_shared(config).plus(
        renames=RENAMES,
        fusions=(Fusion(("q_proj", "k_proj", "k_proj"), "qkk_proj"),),
        scales=(Scale(re.compile(r"\.router_norm\.weight$"), config.hidden_size**-0.5),),
        stacks=STACKS,
    )
