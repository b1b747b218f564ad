"""What families with a mixture of experts have in common, and those that are more than Llama with experts: Qwen3 MoE
(https://arxiv.org/abs/2505.09388), ERNIE 4.5 (https://ernie.baidu.com/blog/publication/ERNIE_Technical_Report.pdf),
Phi-3.5-MoE, Trinity.
"""

import re
from dataclasses import replace

import torch
from torch import nn

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, gated_mlp
from lullm.models.family.gemma.gemma3 import GemmaLayer
from lullm.models.family.glm import with_neighbours
from lullm.models.family.layer_norm.parallel import LOGIT_BIAS, layer_norm
from lullm.models.rules import rules_of
from lullm.nn.experts import MixtureOfExperts
from lullm.weights.rule import Fusion, Rename, Stack, WeightRules, renames

MIXTRAL_RENAMES = renames(
    (r"(?<=\.)block_sparse_moe\.", "mlp."),
    (r"(?<=\.)w1(?=\.weight$)", "gate_proj"),
    (r"(?<=\.)w3(?=\.weight$)", "up_proj"),
    (r"(?<=\.)w2(?=\.weight$)", "down_proj"),
)
GLM_RENAMES = renames((r"\.shared_experts\.", ".shared_expert."))
ROUTER_RENAMES = renames(
    (r"\.mlp\.(?=e_score_correction_bias$)", ".mlp.gate."),
    (r"\.mlp\.router\.gate\.", ".mlp.gate."),
    (r"\.mlp\.expert_bias$", ".mlp.gate.e_score_correction_bias"),
    (r"\.mlp\.shared_mlp\.", ".mlp.shared_expert."),
)
EXPERT_RENAMES = (*MIXTRAL_RENAMES, *GLM_RENAMES, *ROUTER_RENAMES)
"""What experts, their routers and shared ones are called in checkpoints of Llama's shape."""
ERNIE_CORRECTION = renames((r"\.mlp\.(gate\.)?moe_statics\.", ".mlp.gate."))
ERNIE_DRAFTS = re.compile(r"^model\.mtp_")
AFMOE_RENAMES = renames(
    (r"\.pre_mlp_layernorm\.", ".pre_feedforward_layernorm."),
    (r"\.post_mlp_layernorm\.", ".post_feedforward_layernorm."),
)


COLUMN_STACKS = (
    Stack(
        "experts",
        "gate_up_proj",
        ("gate_proj.weight", "up_proj.weight"),
        is_transposed=True,
        or_plain=True,
        takes_turns=False,
        or_apart=True,
    ),
    Stack("experts", "down_proj", ("down_proj.weight",), is_transposed=True, or_plain=True, or_apart=True),
)
"""Matrices of Qwen3-VL and Llama 4. Released files hold them as `[in, out]`, those of Qwen that transformers 5 saves as
`[out, in]`."""


ROW_STACKS = (
    Stack("experts", "gate_up_proj", ("gate_proj.weight", "up_proj.weight"), takes_turns=False, or_apart=True),
    Stack("experts", "down_proj", ("down_proj.weight",), or_apart=True),
)
"""As `[out, in]`, as transformers 5 holds them."""


def experts_or_mlp(config: ModelConfig, layer: int, dtype: torch.dtype) -> nn.Module:
    """The experts or the MLP of a layer."""
    family = config.family
    if family.experts is None or not family.experts.layers[layer]:
        return gated_mlp(config, layer, dtype)
    return MixtureOfExperts(family.experts, config.hidden_size, family.activation, dtype)


def with_gates_apart(rules: WeightRules) -> WeightRules:
    """Rules for families with a separate matrix for the gates of attention, `gate_proj` or `g_proj`."""
    of_heads = Fusion(("gate_proj", "q_proj", "k_proj", "v_proj"), "qkv_proj")
    others = tuple(fusion for fusion in rules.fusions if fusion.into != of_heads.into)
    name = Rename(re.compile(r"\.self_attn\.g_proj\."), ".self_attn.gate_proj.")
    return replace(rules, renames=(*rules.renames, name), fusions=(of_heads, *others))


def phimoe_style(config: ModelConfig) -> DecoderStyle:
    """Mixtral with norms of mean and variance, and biases (https://arxiv.org/abs/2404.14219)."""
    return DecoderStyle(
        rules_of(config, *MIXTRAL_RENAMES, *LOGIT_BIAS),
        has_logit_bias=config.family.has_logit_bias,
        make_norm=layer_norm,
        make_mlp=experts_or_mlp,
    )


def qwen3_moe_style(config: ModelConfig) -> DecoderStyle:
    """Checkpoints of Qwen3-VL hold the experts of a layer as one tensor."""
    rules = replace(rules_of(config), stacks=COLUMN_STACKS)
    return DecoderStyle(rules, qk_norm="heads", make_mlp=experts_or_mlp)


def ernie4_5_moe_style(config: ModelConfig) -> DecoderStyle:
    rules = with_neighbours(config, *GLM_RENAMES, *ERNIE_CORRECTION)
    rules = rules.plus(drops=(ERNIE_DRAFTS,), flattens=(re.compile(r"\.e_score_correction_bias$"),))
    return DecoderStyle(rules, make_mlp=experts_or_mlp)


def afmoe_style(config: ModelConfig) -> DecoderStyle:
    rules = with_gates_apart(rules_of(config, *AFMOE_RENAMES, *EXPERT_RENAMES))
    return DecoderStyle(rules, qk_norm="heads", make_mlp=experts_or_mlp, make_layer=GemmaLayer)
