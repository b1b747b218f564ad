"""Zamba 2 (https://arxiv.org/abs/2411.15242): a state space (Mamba 2) in every layer, and before some a shared block.

A block is attention and an MLP over the hidden states joined with the embeddings. These layers use one block, or two
alternately; each layer adds its own small matrices to the shared ones. The state space after a block reads its result,
which is not part of the residual stream.
"""

from dataclasses import replace
from itertools import cycle

import torch
from torch import Tensor, nn

from lullm.config.layer.recurrent import StateSpaceConfig
from lullm.config.model import ModelConfig
from lullm.models.decoder import Decoder, DecoderLayer, DecoderStyle, LayerSpec, place_of, summed
from lullm.models.family.hybrid.state_space import no_mlp
from lullm.models.rules import rules_of
from lullm.nn.attention import Attention, AttentionStyle
from lullm.nn.context import StepContext
from lullm.nn.embedding import new_embedding
from lullm.nn.linear import FusedLinear, Linear
from lullm.nn.norm import RMSNorm
from lullm.nn.recurrent.state_space import StateSpace
from lullm.ops.attention_layout import CausalScores
from lullm.ops.table import Ops
from lullm.types.layer_kind import FullAttention
from lullm.weights.rule import Fusion, WeightRules, renames

MIXER_EPS = 1e-5
"""The epsilon of the norm after the state space; other norms may differ."""
HEADS = ("q", "k", "v")


class SharedBlock(nn.Module):
    """The modules that several layers share."""

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype):
        super().__init__()
        family, heads = config.family, config.kv_heads(2 * layer)
        hidden_size, inner_size, bias = config.hidden_size, family.intermediate_size, family.mlp_bias
        q_size = config.num_attention_heads * heads.head_dim
        self.input_layernorm = RMSNorm(2 * hidden_size, family.rms_norm_eps, dtype)
        self.qkv_proj = FusedLinear(2 * hidden_size, (q_size, heads.size, heads.size), False, dtype)
        self.o_proj = Linear(q_size, hidden_size, False, dtype)
        self.pre_ff_layernorm = RMSNorm(hidden_size, family.rms_norm_eps, dtype)
        self.gate_up_proj = FusedLinear(hidden_size, (inner_size, inner_size), bias, dtype)
        self.down_proj = Linear(inner_size, hidden_size, bias, dtype)


class AdaptedAttention(Attention):
    """Attention with the matrices of a block, and its own small ones."""

    def __init__(self, config: ModelConfig, block: SharedBlock, layer: int, group: int, dtype: torch.dtype):
        style = AttentionStyle(CausalScores(config.family.attention_scale))
        super().__init__(config, style, 2 * layer, group, dtype)
        self.qkv_proj, self.o_proj = block.qkv_proj, block.o_proj
        shared = config.family.shared_blocks
        assert shared is not None, "of this family"
        self.rank, self.adapters = shared.rank, nn.ModuleList()
        if shared.adapts_attention:
            self.qkv_down = FusedLinear(2 * config.hidden_size, (shared.rank,) * 3, False, dtype)
            self.adapters.extend(Linear(shared.rank, size, False, dtype) for size in block.qkv_proj.part_sizes)

    def project(self, x: Tensor, ops: Ops) -> Tensor:
        """See `Attention.project`."""
        qkv = super().project(x, ops)
        if not self.adapters:
            return qkv
        lows = self.qkv_down(x, ops).split(self.rank, dim=-1)
        q, k, v = (adapter(low, ops) for low, adapter in zip(lows, self.adapters, strict=True))
        ops.add_(qkv, ops.join(ops.join(q, k), v))
        return qkv


class PlacedBlock(nn.Module):
    """A block in a layer: shared modules, and the layer's own."""

    def __init__(self, config: ModelConfig, block: SharedBlock, layer: int, group: int, dtype: torch.dtype):
        super().__init__()
        shared, hidden_size = config.family.shared_blocks, config.hidden_size
        assert shared is not None, "of this family"
        self.shared = block
        self.activation = config.family.activation
        self.self_attn = AdaptedAttention(config, block, layer, group, dtype)
        self.gate_up_down = Linear(hidden_size, shared.rank, False, dtype)
        self.gate_up_up = FusedLinear(shared.rank, block.gate_up_proj.part_sizes, False, dtype)
        self.linear = Linear(hidden_size, hidden_size, False, dtype)

    def forward(self, hidden: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        ops, block = context.ops, self.shared
        assert context.layer_inputs is not None, "the decoder has made them"
        joined = ops.join(hidden, context.layer_inputs[:, 0])  # [T, 2 * H]
        mixed = self.self_attn(block.input_layernorm(joined, ops), context)
        ops.all_reduce_(mixed)
        normed = block.pre_ff_layernorm(mixed, ops)
        gate_up = block.gate_up_proj(normed, ops)
        ops.add_(gate_up, self.gate_up_up(self.gate_up_down(normed, ops), ops))
        gates, ups = gate_up.chunk(2, dim=-1)
        fed = ops.activate(gates, self.activation)
        ops.multiply_(fed, ups, None)
        fed = block.down_proj(fed, ops)
        ops.all_reduce_(fed)
        return self.linear(fed, ops)


class Zamba2Layer(DecoderLayer):
    """Maybe a block, then a norm and a state space."""

    def __init__(self, spec: LayerSpec):
        super().__init__(spec)
        self.block: PlacedBlock | None = None

    def forward(self, hidden: Tensor, residual: Tensor | None, context: StepContext) -> tuple[Tensor, Tensor | None]:
        """See `DecoderLayer.forward`."""
        if self.block is None:
            return super().forward(hidden, residual, context)
        ops = context.ops
        residual = summed(hidden, residual, ops)
        read = self.block(residual, context)
        ops.add_(read, residual)
        return self.mix(self.input_layernorm(read, ops), context), residual


class Zamba2Decoder(Decoder):
    """A decoder with blocks in some layers, and the embeddings for them on every stage of a pipeline."""

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style, dtype, max_model_len)
        if not hasattr(self, "embed_tokens"):
            self.embed_tokens = new_embedding(config, config.hidden_size, dtype)
        blocks: dict[int, SharedBlock] = {}
        for layer, number in _blocks(config).items():
            if layer not in config.layers:
                continue
            if number not in blocks:
                blocks[number] = SharedBlock(config, layer, dtype)
            group = place_of(config, 2 * layer).group
            self.layers.get_submodule(str(layer)).block = PlacedBlock(config, blocks[number], layer, group, dtype)

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        hidden = self.embed(token_ids, context)
        embedded = self.embed(token_ids, replace(context, stream=None))  # apart, since layers write over the other
        return self.run(hidden, replace(context, layer_inputs=embedded.unsqueeze(1)))


def _blocks(config: ModelConfig) -> dict[int, int]:
    """The numbers of the blocks, by layer."""
    shared = config.family.shared_blocks
    assert shared is not None, "of this family"
    layers = [layer for layer, kind in enumerate(config.layer_kinds[::2]) if isinstance(kind, FullAttention)]
    return dict(zip(layers, cycle(range(shared.num_blocks)), strict=False))


def _mixers(spec: LayerSpec) -> dict[str, nn.Module]:
    state_space, index = spec.config.family.recurrent, 2 * spec.number + 1
    assert isinstance(state_space, StateSpaceConfig), "of this family"
    place = place_of(spec.config, index)
    return {"mamba": StateSpace(state_space, spec.config.hidden_size, MIXER_EPS, index, place, spec.dtype)}


def _rules(config: ModelConfig) -> WeightRules:
    """A checkpoint has a block at its first layer, with the small matrices of all its layers in lists."""
    blocks = _blocks(config)
    first_layers = {number: layer for layer, number in reversed(blocks.items())}
    own_layers = {number: layer for layer, number in reversed(blocks.items()) if layer in config.layers}
    pairs = []
    for place, (layer, number) in enumerate(blocks.items()):
        source, own = rf"^model\.layers\.{first_layers[number]}\.shared_transformer\.", f"model.layers.{layer}.block."
        for part, name in enumerate(HEADS):
            adapter = rf"{source}self_attn\.linear_{name}_adapter_list\.{place}\."
            pairs += [
                (adapter + r"0\.", f"{own}self_attn.{name}_down."),
                (adapter + r"1\.", f"{own}self_attn.adapters.{part}."),
            ]
        adapter = rf"{source}feed_forward\.gate_up_proj_adapter_list\.{place}\."
        pairs += [(adapter + r"0\.", f"{own}gate_up_down."), (adapter + r"1\.", f"{own}gate_up_up.")]
    for number, layer in first_layers.items():
        shared = f"model.layers.{own_layers.get(number, layer)}.block.shared."
        pairs.append((rf"^model\.layers\.{layer}\.shared_transformer\.((self_attn|feed_forward)\.)?", shared))
    pairs += [
        (r"^(model\.layers\.\d+)\.linear\.", r"\1.block.linear."),
        (r"\.mamba_decoder\.", "."),
        (r"^model\.final_layernorm\.", "model.norm."),
    ]
    return replace(
        rules_of(config, *renames(*pairs)),
        fusions=(
            Fusion(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
            Fusion(("q_down", "k_down", "v_down"), "qkv_down"),
        ),
    )


def zamba2_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(
        _rules(config), make_mixers=_mixers, make_mlp=no_mlp, make_layer=Zamba2Layer, make_decoder=Zamba2Decoder
    )
