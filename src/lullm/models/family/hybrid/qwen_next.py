"""Qwen3-Next and Qwen3.5, text: gated delta nets in three of four layers (https://arxiv.org/abs/2412.06464).

The other layers have attention with a gated result, and rotate a part of each head. Checkpoints hold w for norms that
multiply by 1 + w, except the norm after the delta net. An MLP, or experts with a gated shared one, follow as in Qwen2
MoE.
"""

import re
from dataclasses import replace

from torch import nn

from lullm.config.layer.recurrent import DeltaNetConfig
from lullm.config.model import ModelConfig
from lullm.log import get_logger
from lullm.models.decoder import DecoderStyle, LayerSpec, attention_alone
from lullm.models.family.experts.routed import ROW_STACKS, experts_or_mlp
from lullm.models.rules import rules_of
from lullm.nn.recurrent.gated_delta import GatedDeltaNet
from lullm.weights.rule import Fusion, HeadOrder, Offset, WeightRules, rotated_first

logger = get_logger(__name__)

PLUS_ONE = Offset(re.compile(r"^(?!vision\.).*(?<!linear_attn\.)norm\.weight$"), 1.0)
DRAFTS = re.compile(r"^mtp\.")
DELTA_NET = (Fusion(("in_proj_qkv", "in_proj_z"), "in_proj_qkvz"), Fusion(("in_proj_b", "in_proj_a"), "in_proj_ba"))


def delta_net_or_attention(
    spec: LayerSpec, *, eps: float | None = None, is_apart: bool = False
) -> dict[str, nn.Module]:
    """Attention, or a gated delta net in its place; `eps`: of its norm, if it differs from the others'."""
    if not spec.is_recurrent:
        return attention_alone(spec)
    sizes = spec.config.hidden_size, spec.config.family.rms_norm_eps if eps is None else eps
    delta_net, place = _delta_net(spec.config), spec.place
    return {"linear_attn": GatedDeltaNet(delta_net, *sizes, spec.number, place, spec.dtype, is_apart)}


def _delta_net(config: ModelConfig) -> DeltaNetConfig:
    delta_net = config.family.recurrent
    assert isinstance(delta_net, DeltaNetConfig), "of this family"
    return delta_net


def qwen3_next_style(config: ModelConfig) -> DecoderStyle:
    rules = _rules(config)
    delta_net = _delta_net(config)
    orders = (_order_of_projections(delta_net), _order_of_sizes(delta_net), *rules.head_orders)
    return _style(replace(rules, head_orders=orders))


def qwen3_5_style(config: ModelConfig) -> DecoderStyle:
    stacks = () if config.family.experts is None else ROW_STACKS
    return _style(_rules(config).plus(fusions=DELTA_NET, stacks=stacks))


def _style(rules: WeightRules) -> DecoderStyle:
    logger.info("layers that draft tokens (mtp) are not loaded, if the checkpoint has any")
    return DecoderStyle(rules, qk_norm="heads", make_mlp=experts_or_mlp, make_mixers=delta_net_or_attention)


def _rules(config: ModelConfig) -> WeightRules:
    """The common rules."""
    rules = rules_of(config).plus(drops=(DRAFTS,), offsets=(PLUS_ONE,))
    return replace(rules, head_orders=(_order_of_queries(config), *rules.head_orders))


def _order_of_queries(config: ModelConfig) -> HeadOrder:
    """A checkpoint has each head's gate after its query; here all gates come first."""
    head_dim = config.head_dim
    order = rotated_first(head_dim, config.family.rotary_dim(head_dim))
    starts = range(0, 2 * config.num_attention_heads * head_dim, 2 * head_dim)
    gates = [start + head_dim + i for start in starts for i in range(head_dim)]
    queries = [start + i for start in starts for i in order]
    return HeadOrder(re.compile(r"\.self_attn\.q_proj\."), (*gates, *queries))


def _order_of_projections(config: DeltaNetConfig) -> HeadOrder:
    """A checkpoint has query, key, values and gates of a key head together; here all queries come first, and so on."""
    num_values = config.value_size // config.num_key_heads
    sizes = (config.key_head_dim, config.key_head_dim, num_values, num_values)
    return _by_part(r"\.in_proj_qkvz\.", sizes, config.num_key_heads)


def _order_of_sizes(config: DeltaNetConfig) -> HeadOrder:
    """A checkpoint has the step sizes of a key head together; here those of one kind are."""
    num_each = config.num_value_heads // config.num_key_heads
    return _by_part(r"\.in_proj_ba\.", (num_each, num_each), config.num_key_heads)


def _by_part(pattern: str, sizes: tuple[int, ...], num_heads: int) -> HeadOrder:
    """Reorder heads with parts of these sizes into parts of all heads."""
    order: list[int] = []
    for part, size in enumerate(sizes):
        for head in range(num_heads):
            first = head * sum(sizes) + sum(sizes[:part])
            order += range(first, first + size)
    return HeadOrder(re.compile(pattern), tuple(order))
