"""Families with a mixture of experts over the shared decoder.

Mixtral (https://arxiv.org/abs/2401.04088), Qwen2 MoE (https://arxiv.org/abs/2407.10671), Qwen3 MoE
(https://arxiv.org/abs/2505.09388), OLMoE (https://arxiv.org/abs/2409.02060), GLM-4.5
(https://arxiv.org/abs/2508.06471), Solar Open, K-EXAONE, dots.llm1 (https://arxiv.org/abs/2506.05767), MiniMax-M2
(https://huggingface.co/MiniMaxAI/MiniMax-M2), Hunyuan 3 (https://huggingface.co/tencent/Hy3-preview), ERNIE 4.5
(https://ernie.baidu.com/blog/publication/ERNIE_Technical_Report.pdf).
They differ in the router, the shared expert and the attention, all of which are data.
"""

import re
from dataclasses import replace

import torch
from torch import nn

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderStyle, gated_mlp, rules_of
from lullm.models.family.gemma.gemma3 import GemmaLayer
from lullm.models.family.glm import with_neighbours
from lullm.models.family.layer_norm.parallel import LOGIT_BIAS, layer_norm
from lullm.nn.experts import MixtureOfExperts
from lullm.weights.rule import Fusion, Rename, Stack, WeightRules

MIXTRAL_RENAMES = (
    Rename(re.compile(r"(?<=\.)block_sparse_moe\."), "mlp."),
    Rename(re.compile(r"(?<=\.)w1(?=\.weight$)"), "gate_proj"),
    Rename(re.compile(r"(?<=\.)w3(?=\.weight$)"), "up_proj"),
    Rename(re.compile(r"(?<=\.)w2(?=\.weight$)"), "down_proj"),
)
MINIMAX_CORRECTION = Rename(re.compile(r"\.mlp\.(?=e_score_correction_bias$)"), ".mlp.gate.")
ERNIE_CORRECTION = Rename(re.compile(r"\.mlp\.(gate\.)?moe_statics\."), ".mlp.gate.")
EXAONE_DRAFTS = re.compile(r"^mtp\.")
ERNIE_DRAFTS = re.compile(r"^model\.mtp_")
ROUTER_RENAMES = (
    Rename(re.compile(r"\.mlp\.router\.gate\."), ".mlp.gate."),
    Rename(re.compile(r"\.mlp\.expert_bias$"), ".mlp.gate.e_score_correction_bias"),
)
AFMOE_RENAMES = (
    Rename(re.compile(r"\.pre_mlp_layernorm\."), ".pre_feedforward_layernorm."),
    Rename(re.compile(r"\.post_mlp_layernorm\."), ".post_feedforward_layernorm."),
    *ROUTER_RENAMES,
)
GLM_RENAMES = (Rename(re.compile(r"\.shared_experts\."), ".shared_expert."),)


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
"""Of Qwen3-VL and Llama 4: the released files hold them as `[in, out]`, those of Qwen that transformers 5 saves as
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
        return gated_mlp(config, layer, dtype, family.mlp_bias)
    return MixtureOfExperts(family.experts, config.hidden_size, family.activation, dtype)


def with_gates_apart(rules: WeightRules) -> WeightRules:
    """Rules for families with a separate matrix for the gates of attention, `gate_proj` or `g_proj`."""
    of_heads = Fusion(("gate_proj", "q_proj", "k_proj", "v_proj"), "qkv_proj")
    others = tuple(fusion for fusion in rules.fusions if fusion.into != of_heads.into)
    name = Rename(re.compile(r"\.self_attn\.g_proj\."), ".self_attn.gate_proj.")
    return replace(rules, renames=(*rules.renames, name), fusions=(of_heads, *others))


def drafts_of(config: ModelConfig) -> re.Pattern[str]:
    """The names of the layer after the last, which drafts tokens."""
    return re.compile(rf"^model\.layers\.{config.num_hidden_layers}\.")


def build_mixtral(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules = rules_of(config)
    style = DecoderStyle(replace(rules, renames=(*rules.renames, *MIXTRAL_RENAMES)), make_mlp=experts_or_mlp)
    return CausalLM(config, style, dtype, max_model_len)


def build_phimoe(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    """Mixtral with norms of mean and variance, and biases (https://arxiv.org/abs/2404.14219)."""
    rules, bias = rules_of(config), config.family.attention_bias
    style = DecoderStyle(
        replace(rules, renames=(*rules.renames, *MIXTRAL_RENAMES, *LOGIT_BIAS)),
        qkv_bias=bias,
        o_bias=bias,
        has_logit_bias=config.family.has_logit_bias,
        make_norm=layer_norm,
        make_mlp=experts_or_mlp,
    )
    return CausalLM(config, style, dtype, max_model_len)


def build_qwen2_moe(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    style = DecoderStyle(rules_of(config), qkv_bias=config.family.attention_bias, make_mlp=experts_or_mlp)
    return CausalLM(config, style, dtype, max_model_len)


def build_qwen3_moe(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    """Checkpoints of Qwen3-VL hold the experts of a layer as one tensor."""
    rules, bias = replace(rules_of(config), stacks=COLUMN_STACKS), config.family.attention_bias
    style = DecoderStyle(rules, head_norms=True, qkv_bias=bias, o_bias=bias, make_mlp=experts_or_mlp)
    return CausalLM(config, style, dtype, max_model_len)


def build_olmoe(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    bias = config.family.attention_bias
    style = DecoderStyle(rules_of(config), row_norms=True, qkv_bias=bias, o_bias=bias, make_mlp=experts_or_mlp)
    return CausalLM(config, style, dtype, max_model_len)


def build_dots1(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules, bias = rules_of(config), config.family.attention_bias
    rules = replace(rules, renames=(*rules.renames, *GLM_RENAMES))
    style = DecoderStyle(rules, head_norms=True, qkv_bias=bias, o_bias=bias, make_mlp=experts_or_mlp)
    return CausalLM(config, style, dtype, max_model_len)


def build_minimax_m2(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules = rules_of(config)
    rules = replace(
        rules, renames=(*rules.renames, *MIXTRAL_RENAMES, MINIMAX_CORRECTION), drops=(*rules.drops, drafts_of(config))
    )
    return CausalLM(config, DecoderStyle(rules, row_norms=True, make_mlp=experts_or_mlp), dtype, max_model_len)


def build_ernie4_5_moe(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules = with_neighbours(config)
    rules = replace(
        rules,
        renames=(*rules.renames, *GLM_RENAMES, ERNIE_CORRECTION),
        drops=(*rules.drops, ERNIE_DRAFTS),
        flattens=(re.compile(r"\.e_score_correction_bias$"),),
    )
    return CausalLM(config, DecoderStyle(rules, make_mlp=experts_or_mlp), dtype, max_model_len)


def build_exaone_moe(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules = rules_of(config)
    renames = (*rules.renames, *GLM_RENAMES, MINIMAX_CORRECTION)
    rules = replace(rules, renames=renames, drops=(*rules.drops, EXAONE_DRAFTS))
    return CausalLM(config, DecoderStyle(rules, head_norms=True, make_mlp=experts_or_mlp), dtype, max_model_len)


def build_afmoe(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules = with_gates_apart(rules_of(config))
    rules = replace(rules, renames=(*rules.renames, *AFMOE_RENAMES, *GLM_RENAMES))
    style = DecoderStyle(rules, head_norms=True, make_mlp=experts_or_mlp, make_layer=GemmaLayer)
    return CausalLM(config, style, dtype, max_model_len)


def build_hy_v3(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules, bias = rules_of(config), config.family.attention_bias
    shared = Rename(re.compile(r"\.mlp\.shared_mlp\."), ".mlp.shared_expert.")
    renames, drops = (*rules.renames, *ROUTER_RENAMES, shared), (*rules.drops, drafts_of(config))
    style = DecoderStyle(
        replace(rules, renames=renames, drops=drops),
        head_norms=True,
        qkv_bias=bias,
        o_bias=bias,
        make_mlp=experts_or_mlp,
    )
    return CausalLM(config, style, dtype, max_model_len)


def build_glm4_moe(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules = rules_of(config)
    style = DecoderStyle(
        replace(rules, renames=(*rules.renames, *GLM_RENAMES), drops=(*rules.drops, drafts_of(config))),
        head_norms=config.family.has_head_norms,
        qkv_bias=config.family.attention_bias,
        make_mlp=experts_or_mlp,
    )
    return CausalLM(config, style, dtype, max_model_len)
