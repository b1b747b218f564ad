"""DeepSeek-V2 (https://arxiv.org/abs/2405.04434), V3 and R1 (https://arxiv.org/abs/2412.19437), GLM-4.7-Flash.

Attention over latent vectors, dense layers in front, and then experts with shared ones beside them. Mistral 4 is near.
"""

import re
from dataclasses import replace

from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderLayer, DecoderStyle, LayerSpec
from lullm.models.family.experts.routed import GLM_RENAMES, ROW_STACKS, experts_or_mlp
from lullm.models.rules import drafts_of, rules_of
from lullm.nn.latent_attention import LatentAttention
from lullm.nn.norm import normed
from lullm.ops.table import Ops
from lullm.weights.rule import HeadOrder, WeightRules


def latent_attention(spec: LayerSpec) -> dict[str, nn.Module]:
    bias, factors = spec.config.family.attention_bias, spec.style.query_factors
    return {"self_attn": LatentAttention(spec.config, bias, spec.number, spec.group, spec.dtype, factors)}


def deepseek_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(_rules(config), make_mlp=experts_or_mlp, make_mixers=latent_attention)


class NormBehindExperts(DecoderLayer):
    """A layer with a norm on the experts' results; layers with an MLP have none."""

    def __init__(self, spec: LayerSpec):
        super().__init__(spec)
        has_experts = spec.config.family.experts is not None and spec.config.family.experts.layers[spec.number]
        self.post_mlp_layernorm = spec.style.make_norm(spec.config, spec.dtype) if has_experts else None

    def feed(self, hidden: Tensor, ops: Ops) -> Tensor:
        """See `DecoderLayer.feed`."""
        return normed(self.post_mlp_layernorm, super().feed(hidden, ops), ops)


def axk1_style(config: ModelConfig) -> DecoderStyle:
    """A.X-K1, whose files hold the norm of layers with an MLP, too, and may lack the router's correction."""
    experts = config.family.experts
    dense = "|".join(str(layer) for layer, own in enumerate(experts.layers if experts else ()) if not own)
    rules = _rules(config).plus(
        drops=(re.compile(rf"\.layers\.({dense or 'none'})\.post_mlp_layernorm\."),),
        zeros=(re.compile(r"\.e_score_correction_bias$"),),
    )
    return DecoderStyle(rules, make_mlp=experts_or_mlp, make_mixers=latent_attention, make_layer=NormBehindExperts)


def mistral4_style(config: ModelConfig) -> DecoderStyle:
    """Its files hold the experts of a layer as one tensor."""
    style = deepseek_style(config)
    return replace(style, rules=style.rules.plus(stacks=ROW_STACKS))


def _rules(config: ModelConfig) -> WeightRules:
    sizes = config.family.latent
    assert sizes is not None, "of a family with latents"
    orders: tuple[HeadOrder, ...] = ()
    if sizes.interleaves:
        orders = (
            HeadOrder(
                re.compile(r"^(?!vision\.).*\.self_attn\.q(_b)?_proj\."),
                _evens_first(sizes.plain_size, sizes.rope_size),
            ),
            HeadOrder(re.compile(r"\.self_attn\.kv_a_proj_with_mqa\."), _evens_first(sizes.rank, sizes.rope_size)),
        )
    return replace(rules_of(config, *GLM_RENAMES).plus(drops=(drafts_of(config),)), head_orders=orders)


def _evens_first(num_kept: int, num_turned: int) -> tuple[int, ...]:
    """The order of a head that ends with pairs of neighbours: the first of each pair, then the second."""
    turned = range(num_kept, num_kept + num_turned)
    return (*range(num_kept), *turned[::2], *turned[1::2])
