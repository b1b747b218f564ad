"""The rules from a checkpoint's names to the parameters of what reads pictures."""

import re
from dataclasses import replace

from lullm.config.vision.vision import TowerConfig
from lullm.weights.rule import PICTURES, THINKER, HeadOrder, Rename, WeightRules, renames, with_part

VISION_RENAMES = renames(
    # as Phi-4-multimodal spells them, in transformers' words and in its authors'
    (r"^(model\.)?embed_tokens_extend\.image_embed\.img_processor\.", "vision.tower."),
    (r"^(model\.)?embed_tokens_extend\.image_embed\.img_projection(_up|\.0)\.", "vision.connector.linear_1."),
    (r"^(model\.)?embed_tokens_extend\.image_embed\.img_projection(_down|\.2)\.", "vision.connector.linear_2."),
    (r"^(model\.)?embed_tokens_extend\.image_embed\.(sub_img_feature_extensor|sub_GN)$", "vision.connector.line_end"),
    (r"^(model\.)?embed_tokens_extend\.image_embed\.(global_img_feature_extensor|glb_GN)$", "vision.connector.between"),
    (r"^(model\.)?visual\.vision_model\.", "vision.tower."),  # PaddleOCR-VL's
    (r"^(model\.)?(projector|mlp_AR)\.pre_norm\.", "vision.connector.layer_norm."),
    (r"^(model\.)?(projector|mlp_AR)\.", "vision.connector."),
    (r"^(model\.)?(vision_tower|vision_model|vision_encoder)\.(vision_model\.)?", "vision.tower."),
    (r"^vision\.tower\.encoder\.", "vision.tower."),
    (r"^vision\.tower\.pre_layrnorm\.", "vision.tower.pre_layernorm."),  # as CLIP spells it
    # as InternViT spells them
    (r"^vision\.tower\.layer\.", "vision.tower.layers."),
    (r"(?<=^vision\.tower\.)layernorm\.", "post_layernorm."),
    (r"^(vision\.tower\.layers\.\d+\.)attention\.projection_layer\.", r"\1self_attn.out_proj."),
    (r"^(vision\.tower\.layers\.\d+\.)attention\.", r"\1self_attn."),
    (r"^(vision\.tower\.layers\.\d+\.)layernorm_before\.", r"\1layer_norm1."),
    (r"^(vision\.tower\.layers\.\d+\.)layernorm_after\.", r"\1layer_norm2."),
    (r"(?<=^vision\.tower\.embeddings\.)cls_token$", "class_embedding"),
    (r"(?<=^vision\.tower\.embeddings\.)position_embeddings$", "position_embedding.weight"),
    (r"(?<=^vision\.tower\.embeddings\.)patch_embeddings\.projection\.", "patch_embedding."),
    # as InternVL's authors spell them
    (r"^(vision\.tower\.layers\.\d+\.)ls([12])$", r"\1lambda_\2"),
    (r"(?<=^vision\.tower\.embeddings\.)position_embedding$", "position_embedding.weight"),
    (r"^mlp1\.0\.", "vision.connector.layer_norm."),
    (r"^mlp1\.1\.", "vision.connector.linear_1."),
    (r"^mlp1\.3\.", "vision.connector.linear_2."),
    # as Qwen2-VL spells them
    (r"^(model\.)?visual\.", "vision.tower."),
    (r"^vision\.tower\.patch_embed\.proj\.", "vision.tower.embeddings.patch_embedding."),
    (r"^vision\.tower\.blocks\.", "vision.tower.layers."),
    (r"^(vision\.tower\.layers\.\d+\.)attn\.qkv\.", r"\1self_attn.qkv_proj."),
    (r"^(vision\.tower\.layers\.\d+\.)attn\.proj\.", r"\1self_attn.out_proj."),
    (r"^(vision\.tower\.layers\.\d+\.)attn\.([qkv])\.", r"\1self_attn.\2_proj."),  # Qwen2.5-Omni's
    (r"^(vision\.tower\.layers\.\d+\.)attn\.(?=[qk]_norm\.)", r"\1self_attn."),
    (r"^(vision\.tower\.layers\.\d+\.)norm([12])\.", r"\1layer_norm\2."),
    (r"^(vision\.tower\.layers\.\d+\.mlp\.)up_proj\.", r"\1fc1."),
    (r"^(vision\.tower\.layers\.\d+\.mlp\.)down_proj\.", r"\1fc2."),
    (r"(?<=\.mlp\.)linear_fc(?=[12]\.)", "fc"),
    (r"^vision\.tower\.pos_embed\.", "vision.tower.embeddings.position_embedding."),
    (r"^vision\.tower\.deepstack_merger_list\.(\d+\.)norm\.", r"vision.deep.\1layer_norm."),
    (r"^vision\.tower\.deepstack_merger_list\.(\d+\.)linear_fc", r"vision.deep.\1linear_"),
    (r"^vision\.tower\.merger\.linear_fc", "vision.connector.linear_"),
    (r"^vision\.tower\.merger\.(ln_q|norm)\.", "vision.tower.post_layernorm."),
    (r"^vision\.tower\.merger\.mlp\.0\.", "vision.connector.linear_1."),
    (r"^vision\.tower\.merger\.mlp\.2\.", "vision.connector.linear_2."),
    (r"^(model\.)?image_newline$", "vision.newline"),  # LLaVA-NeXT's
    # as GLM-4.1V spells them
    (r"^vision\.tower\.post_conv_layernorm\.", "vision.tower.embeddings.patch_norm."),
    (r"^vision\.tower\.downsample\.", "vision.connector.downsample."),
    (r"^vision\.tower\.merger\.proj\.", "vision.connector.proj."),
    (r"^vision\.tower\.merger\.post_projection_norm\.", "vision.connector.layer_norm."),
    (r"^vision\.tower\.merger\.gate_proj\.", "vision.connector.mlp.gate_proj."),
    (r"^vision\.tower\.merger\.up_proj\.", "vision.connector.mlp.fc1."),
    (r"^vision\.tower\.merger\.down_proj\.", "vision.connector.mlp.fc2."),
    # as Pixtral and Mistral 3 spell them
    (r"^vision\.tower\.patch_conv\.", "vision.tower.embeddings.patch_embedding."),
    (r"^vision\.tower\.ln_pre\.", "vision.tower.pre_layernorm."),
    (r"^vision\.tower\.transformer\.layers\.", "vision.tower.layers."),
    (r"^(vision\.tower\.layers\.\d+\.)attention\.o_proj\.", r"\1self_attn.out_proj."),
    (r"^(vision\.tower\.layers\.\d+\.)attention\.", r"\1self_attn."),
    (r"^(vision\.tower\.layers\.\d+\.)attention_norm\.", r"\1layer_norm1."),
    (r"^(vision\.tower\.layers\.\d+\.)ffn_norm\.", r"\1layer_norm2."),
    (r"^(vision\.tower\.layers\.\d+\.)feed_forward\.gate_proj\.", r"\1mlp.gate_proj."),
    (r"^(vision\.tower\.layers\.\d+\.)feed_forward\.up_proj\.", r"\1mlp.fc1."),
    (r"^(vision\.tower\.layers\.\d+\.)feed_forward\.down_proj\.", r"\1mlp.fc2."),
    (r"^(model\.)?(multi_modal_projector|vision_projection)\.patch_merger\.", "vision.connector."),
    (r"^(model\.)?vision_projection\.", "vision.connector."),  # LightOnOCR's
    # as Gemma 4 spells them
    (r"^vision\.tower\.patch_embedder\.input_proj\.", "vision.tower.embeddings.patch_embedding."),
    (r"^vision\.tower\.patch_embedder\.position_embedding_table$", "vision.tower.embeddings.position_embedding.weight"),
    (r"^(vision\.tower\.layers\.\d+\.)input_layernorm\.", r"\1layer_norm1."),
    (r"^(vision\.tower\.layers\.\d+\.)post_attention_layernorm\.", r"\1result_norm1."),
    (r"^(vision\.tower\.layers\.\d+\.)pre_feedforward_layernorm\.", r"\1layer_norm2."),
    (r"^(vision\.tower\.layers\.\d+\.)post_feedforward_layernorm\.", r"\1result_norm2."),
    (r"^(vision\.tower\.layers\.\d+\.self_attn\.)o_proj\.", r"\1out_proj."),
    (r"^vision\.tower\.std_", "vision.connector.std_"),
    (r"^(model\.)?embed_vision\.embedding_projection\.", "vision.connector.projection."),
    # as Gemma 3 spells them
    (r"^(model\.)?multi_modal_projector\.mm_input_projection_weight$", "vision.connector.projection"),
    (r"^(model\.)?multi_modal_projector\.mm_soft_emb_norm\.", "vision.connector.norm."),
    (r"^(model\.)?multi_modal_projector\.", "vision.connector."),
    (r"^(model\.)?connector\.modality_projection\.", "vision.connector."),
)
"""Older and newer names."""
_UNCLIPPED = re.compile(r"^(vision\.tower\.layers\..*)\.linear(?=\.weight$)")
_UNUSED = (
    r"^vision\.tower\.(embeddings\.(position_ids$|mask_token$|packing_position_embedding\.)|head\.|"
    r"rotary_pos_emb\.inv_freq$)"
)
_ROWS = re.compile(r"^vision\.connector\.(line_end|between)$")
_BATCHED = re.compile(r"^vision\.tower\.embeddings\.(class_embedding|position_embedding\.weight)$")


def with_vision(rules: WeightRules, tower: TowerConfig) -> WeightRules:
    """The rules of a model that reads pictures. Later layers of the tower, and a norm that is not used, are dropped."""
    used = "|".join(map(str, range(tower.num_layers)))
    unused = [re.compile(_UNUSED), re.compile(rf"^vision\.tower\.layers\.(?!({used})\.)")]
    if tower.post_norm is None:
        unused.append(re.compile(r"^vision\.tower\.post_layernorm\."))
    rules = with_part(rules, PICTURES)
    flattens = (*rules.flattens, _ROWS, _BATCHED) if tower.is_batched else (*rules.flattens, _ROWS)
    vision = VISION_RENAMES if tower.is_clipped else (*VISION_RENAMES, Rename(_UNCLIPPED, r"\1"))
    orders = (_order_of_halves(tower), *rules.head_orders) if tower.in_halves else rules.head_orders
    return replace(
        rules,
        renames=(THINKER, *vision, *rules.renames),
        drops=(*rules.drops, *unused),
        flattens=flattens,
        head_orders=orders,
    )


def _order_of_halves(tower: TowerConfig) -> HeadOrder:
    """A checkpoint has the pairs of columns in the first half of a head, those of lines in the second; here a half has
    the first elements of all pairs, those of lines before those of columns.
    """
    quarter = tower.hidden_size // tower.num_attention_heads // 4
    order = [part * quarter + i for part in (2, 0, 3, 1) for i in range(quarter)]
    return HeadOrder(re.compile(r"^vision\.tower\.layers\.\d+\.self_attn\.[qk]_(proj|norm)\..*weight$"), tuple(order))
