"""BERT (https://arxiv.org/abs/1810.04805) and RoBERTa (https://arxiv.org/abs/1907.11692): learned positions, norms
behind the sums; DistilBERT (https://arxiv.org/abs/1910.01108) and ELECTRA (https://arxiv.org/abs/2003.10555), too.
NomicBERT (https://arxiv.org/abs/2402.01613) and GTE (https://arxiv.org/abs/2407.19669): the same with ropes and gates
in place of positions and a plain MLP.
"""

import re
from dataclasses import replace

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, gated_mlp, plain_mlp
from lullm.models.encoder_only import Encoder, EncoderModel, PostNormLayer
from lullm.models.family.layer_norm.parallel import layer_norm
from lullm.models.rules import used_first
from lullm.nn.linear import Linear
from lullm.nn.mlp import GatedMLP
from lullm.weights.rule import Fusion, HeadOrder, WeightRules, renames

_EMBEDDINGS = (
    (r"^(albert|bert|deberta|distilbert|electra|mpnet|roberta|nomic_bert|gte|new)\.", ""),
    (r"(?<=LayerNorm\.)gamma$", "weight"),
    (r"(?<=LayerNorm\.)beta$", "bias"),
    (r"^embeddings\.word_embeddings\.", "model.embed_tokens."),
    (r"^embeddings\.position_embeddings\.", "model.embed_positions."),
    (r"^embeddings\.token_type_embeddings\.", "model.embed_segments."),
    (r"^(embeddings\.LayerNorm|emb_ln)\.", "model.embed_norm."),
    (r"^((encoder|transformer)\.)?layers?\.", "model.layers."),
)
BERT_NAMES = (
    (r"\.attention\.self\.query\.", ".self_attn.q_proj."),
    (r"\.attention\.self\.key\.", ".self_attn.k_proj."),
    (r"\.attention\.self\.value\.", ".self_attn.v_proj."),
    (r"\.attention\.output\.dense\.", ".self_attn.o_proj."),
    (r"\.attention\.output\.LayerNorm\.", ".input_layernorm."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.output\.LayerNorm\.", ".post_attention_layernorm."),
)
_DISTILBERT = (
    *((rf"\.attention\.{name}_lin\.", f".self_attn.{name}_proj.") for name in "qkv"),
    (r"\.attention\.out_lin\.", ".self_attn.o_proj."),
    (r"\.sa_layer_norm\.", ".input_layernorm."),
    (r"\.ffn\.lin(?=[12]\.)", ".mlp.fc"),
    (r"\.output_layer_norm\.", ".post_attention_layernorm."),
    (r"^pre_classifier\.", "head.dense."),
)
_ROTATING = (
    (r"\.(post_attention_layernorm|norm1|attn_ln)\.", ".input_layernorm."),
    (r"\.(post_mlp_layernorm|norm2|mlp_ln)\.", ".post_attention_layernorm."),
    (r"\.(attn\.Wqkv|attention\.qkv_proj)\.", ".self_attn.qkv_proj."),
    (r"\.(attn\.out_proj|attention\.o_proj)\.", ".self_attn.o_proj."),
    (r"\.mlp\.fc11\.", ".mlp.up_proj."),
    (r"\.mlp\.fc12\.", ".mlp.gate_proj."),
    (r"\.mlp\.fc2\.", ".mlp.down_proj."),
    (r"\.mlp\.up_gate_proj\.", ".mlp.gate_up_proj."),
)
_HEAD = (
    (r"^(pooler|classifier)\.dense\.", "head.dense."),
    (r"^classifier\.(out_proj\.)?weight$", "head.labels.weight"),
    (r"^classifier\.(out_proj\.)?bias$", "head.bias"),
)
_UNUSED = (
    r"^(cls|(lm|mask)_predictions|lm_head|(vocab|generator|discriminator)_\w+)\.",
    r"^embeddings\.(position|token_type)_ids$",
    r"\.rotary_emb\.inv_freq$",
)
_HEADS_OF_LABELS = r"^(head|classifier)\."
"""Heads of a training, which are dropped where the folder asks for embeddings."""


def encoder_rules(config: ModelConfig, *names: tuple[str, str]) -> WeightRules:
    """Rules with these renames. Rows of positions that no token has stand at the end."""
    unused = _UNUSED if config.labels is not None else (*_UNUSED, _HEADS_OF_LABELS)
    if config.labels is not None and config.labels.form == "token":
        unused = (*unused, r"^head\.dense\.")  # of the training before
    encoder = config.family.encoder_only
    assert encoder is not None, "of a family of encoders"
    first = encoder.first_position
    return WeightRules(
        renames=renames(*_EMBEDDINGS, *names, *_HEAD),
        fusions=(Fusion(("q_proj", "k_proj", "v_proj"), "qkv_proj"), Fusion(("gate_proj", "up_proj"), "gate_up_proj")),
        drops=tuple(re.compile(pattern) for pattern in unused),
        head_orders=(used_first(first, encoder.num_positions),) if first else (),
    )


def bert_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(
        encoder_rules(config, *BERT_NAMES),
        norms_embedding=True,
        make_norm=layer_norm,
        make_mlp=plain_mlp,
        make_layer=PostNormLayer,
        make_decoder=Encoder,
        make_model=EncoderModel,
    )


def distilbert_style(config: ModelConfig) -> DecoderStyle:
    return replace(bert_style(config), rules=encoder_rules(config, *_DISTILBERT))


def electra_style(config: ModelConfig) -> DecoderStyle:
    projection = (r"^embeddings_project\.", "model.embed_projection.")
    return replace(bert_style(config), rules=encoder_rules(config, projection, *BERT_NAMES))


def nomic_bert_style(config: ModelConfig) -> DecoderStyle:
    rules = encoder_rules(config, *_ROTATING)
    rules = replace(rules, fusions=tuple(fusion for fusion in rules.fusions if fusion.into != "qkv_proj"))
    return replace(bert_style(config), rules=rules, make_mlp=gated_mlp)


def _gte_mlp(config: ModelConfig, layer: int, dtype: torch.dtype) -> GatedMLP:
    """With a bias behind the gates only."""
    mlp = gated_mlp(config, layer, dtype)
    mlp.down_proj = Linear(config.family.inner_size(layer), config.hidden_size, True, dtype)
    return mlp


def gte_style(config: ModelConfig) -> DecoderStyle:
    """A checkpoint has the gates behind what they multiply."""
    inner = config.family.intermediate_size
    gates_first = HeadOrder(re.compile(r"\.gate_up_proj\."), (*range(inner, 2 * inner), *range(inner)))
    rules = replace(encoder_rules(config, *_ROTATING), fusions=(), head_orders=(gates_first,))
    return replace(bert_style(config), rules=rules, make_mlp=_gte_mlp)
