"""A published `config.json` at toy size: every key stays, sizes and lengths shrink, ids of tokens fit."""

VOCAB = 320
TRAINED = 16
"""Where a rope is stretched: what a sequence had been trained up to, so that a prompt is longer."""
SIZES = {
    "hidden_size": 64, "n_embd": 64, "d_model": 64, "word_embed_proj_dim": 64, "intermediate_size": 96,
    "ffn_dim": 96, "moe_intermediate_size": 32, "shared_intermediate_size": 48, "block_ff_dim": 96,
    "block_multiple_of": 16, "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB, "sliding_window": 8,
    "kv_lora_rank": 24, "q_lora_rank": 12, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
    "num_experts_per_tok": 2, "rotary_dim": 8, "n_positions": 128, "n_ctx": 128, "max_seq_len": 128,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "mamba_d_state": 16, "ssm_state_size": 16, "mamba_d_head": 16, "mamba_head_dim": 16, "mamba_n_heads": 8,
    "mamba_num_heads": 8, "mamba_d_ssm": 128, "shared_expert_intermediate_size": 32, "n_groups": 2,
    "num_kv_heads": 2, "ffn_hidden_size": 96, "moe_shared_expert_intermediate_size": 48,
    "window_size": 8, "n_inner": 96,
    "kv_channels": 16, "multi_query_group_num": 2, "padded_vocab_size": VOCAB, "seq_length": 128,
    "hidden_size_per_layer_input": 8, "query_pre_attn_scalar": 20, "attention_head_dim": 16,
}  # fmt: skip
TOWER = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16,
    "image_size": 28,
}  # fmt: skip
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")


def shrink(data, num_layers=None):
    """`num_layers`: where the first four are not of every kind. Keys with the value `...` are not published."""
    data = {key: value for key, value in data.items() if value is not ...}
    num_layers = num_layers or _num_layers(data)
    small = {key: _small(key, value, data, num_layers) for key, value in data.items()}
    if "head_dim" in data and data.get("hidden_size") and data.get("num_attention_heads"):
        is_share = data["head_dim"] * data["num_attention_heads"] == data["hidden_size"]
        small["head_dim"] = 16 if is_share else 24
    if isinstance(data.get("head_dim"), int) and "qk_rope_head_dim" in data:
        small["head_dim"] = 8
    return small


def _num_layers(data):
    """As many as there are kinds of layers in the first of them, up to four."""
    types = data.get("layer_types") or data.get("attention_layers") or list(data.get("hybrid_override_pattern") or "")
    own = next((data[key] for key in LAYERS if key in data), 4)
    if not types:
        pattern = data.get("sliding_window_pattern")
        return min(own, pattern + 1 if isinstance(pattern, int) else 4)
    num_shared = 1 if data.get("num_kv_shared_layers") else 0  # behind one of each kind
    return max(types.index(kind) for kind in set(types)) + 1 + num_shared


def _small(key, value, data, num_layers):
    if key in ("text_config", "llm_config"):
        return shrink(value)
    if key == "vision_config":
        return {inner: TOWER.get(inner, given) for inner, given in value.items()}
    if key in ("rope_scaling", "rope_parameters") and value:
        return _rope(value, data)
    if key in LAYERS:
        return num_layers
    if key in HEADS:
        return 4
    if key == "num_key_value_heads":
        return {1: 1, data["num_attention_heads"]: 4}.get(value, 2)
    if key in ("layer_types", "attention_layers", "no_rope_layers", "attn_type_list", "hybrid_override_pattern"):
        return value[:num_layers]
    if key == "intermediate_size" and isinstance(value, list):
        return [SIZES[key]] * num_layers
    if key == "attention_types":
        return [[names, 1] for names, _ in value]
    if key == "activation_sparsity_pattern":  # at least one layer of each kind
        return [*value[: num_layers - 1], 0.0]
    if key == "num_kv_shared_layers" and value:
        return 1
    if key == "full_attn_idxs":
        return [layer for layer in value if layer < num_layers]
    if key.endswith("token_id") and value is not None:
        return [_token_id(each) for each in value] if isinstance(value, list) else _token_id(value)
    if key in ("max_position_embeddings", "original_max_position_embeddings") and _original(data):
        return max(TRAINED * value // _original(data), TRAINED)
    if key in ("max_position_embeddings",):
        return min(value, 256)
    if key == "first_k_dense_replace":
        return 1
    return SIZES.get(key, value) if isinstance(value, int) and not isinstance(value, bool) and value > 1 else value


def _token_id(value):
    return value if value < VOCAB else VOCAB - 40 + value % 40


def _original(data):
    """The trained length of a rope that is stretched, wherever the file says it."""
    rope = data.get("rope_scaling") or data.get("rope_parameters")
    if not rope:
        return None
    return rope.get("original_max_position_embeddings") or data.get("original_max_position_embeddings")


def _rope(rope, data):
    """One factor for each pair of the smaller head."""
    num_pairs = int(8 * data.get("partial_rotary_factor", 1.0))
    small = {key: value[:num_pairs] if key.endswith("_factor") and isinstance(value, list) else value
             for key, value in rope.items()}  # fmt: skip
    if "mrope_section" in rope:
        small["mrope_section"] = [value // 8 for value in rope["mrope_section"]]
    return small | ({"original_max_position_embeddings": TRAINED} if "original_max_position_embeddings" in rope else {})
