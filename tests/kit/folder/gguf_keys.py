"""The keys of a GGUF file, as llama.cpp's converter writes them from a config.json."""

import gguf
import numpy as np


def one_of(config, *names):
    """What the config says under one of these names."""
    return next(config[name] for name in names if config.get(name))


def num_layers(config):
    stated = len(config.get("layers_block_type") or ()) if "mamba_num_heads" in config else 0
    return stated or one_of(config, "num_hidden_layers", "n_layer", "n_layers")


DELTA_NETS = ("Qwen3Next", "Qwen3_5", "Qwen3_5Moe")


def add_space(writer, config, family):
    """State spaces and delta nets."""
    if family == "KimiLinear":
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_kda_head_dim(config["linear_head_dim"])
        return
    if family in DELTA_NETS:
        heads = config["linear_num_value_heads"]
        sizes = (config["linear_conv_kernel_dim"], config["linear_key_head_dim"], config["linear_num_key_heads"])
        inner = config["linear_value_head_dim"] * heads
        writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
    elif family == "NemotronH":
        heads, inner = config["mamba_num_heads"], config["mamba_num_heads"] * config["mamba_head_dim"]
        sizes = (config["conv_kernel"], config["ssm_state_size"], config["n_groups"])
    elif family in HEADLESS:
        heads = one_of(config, *(("num_heads",) if family == "Mamba2" else ("time_step_rank",)))
        inner = config.get("intermediate_size") or config["expand"] * config["hidden_size"]
        sizes = (config["conv_kernel"], config["state_size"], config.get("n_groups"))
        writer.add_ssm_dt_b_c_rms(family == "FalconMamba")
    else:
        heads = one_of(config, "mamba_n_heads", "mamba_dt_rank")
        inner = config.get("mamba_d_ssm") or config["mamba_expand"] * config["hidden_size"]
        sizes = (config["mamba_d_conv"], config["mamba_d_state"], config.get("mamba_n_groups"))
        if family == "GraniteMoeHybrid":
            writer.add_rope_scaling_finetuned(config.get("position_embedding_type") == "rope")
    writer.add_ssm_conv_kernel(sizes[0])
    writer.add_ssm_state_size(sizes[1])
    if sizes[2]:
        writer.add_ssm_group_count(sizes[2])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(inner)


def add_latent(writer, config, family):
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + rotated)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotated)
    writer.add_value_length_mla(config["v_head_dim"])
    third = family != "DeepseekV2"
    writer.add_expert_gating_func(getattr(gguf.ExpertGatingFuncType, "SIGMOID" if third else "SOFTMAX"))
    scale = (config.get("rope_parameters") or {}).get("mscale_all_dim")
    if scale is not None:
        writer.add_rope_scaling_yarn_log_mul(0.1 * scale)


def add_gemma4(writer, config):
    """What differs between layers with windows and others."""
    own, layers = config["per_layer_config"], range(config["num_hidden_layers"])
    heads = [own.get(str(n), {}).get("num_key_value_heads", config["num_key_value_heads"]) for n in layers]
    wide = next(iter(own.values()))["head_dim"]
    factor = config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    turning = int(wide * factor / 2)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turning + [1e30] * (wide // 2 - turning), np.float32))
    writer.add_head_count_kv(heads)
    writer.add_key_length(wide)
    writer.add_value_length(wide)
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count(wide)
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_sliding_window_pattern([each == "sliding_attention" for each in config["layer_types"]])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])


def add_gemma3n(writer, config):
    from statistics import NormalDist

    writer.add_altup_active_idx(config["altup_active_idx"])
    writer.add_altup_num_inputs(config["altup_num_inputs"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    shares = config["activation_sparsity_pattern"]
    writer.add_activation_sparsity_scale([NormalDist().inv_cdf(share) if share else -float("inf") for share in shares])
    writer.add_sliding_window_pattern([each == "sliding_attention" for each in config["layer_types"]])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])


def falcon_groups(config):
    return config["num_kv_heads"] if config["new_decoder_architecture"] else 1


def heads_by_layer(config, family):
    """Of keys: an array where some layers have none."""
    if family.startswith("Deepseek"):
        return 1
    if family == "Falcon":
        return falcon_groups(config)
    if family in ("GPTNeoX", "Bloom", "Mpt", "GPTBigCode"):
        return 1 if config.get("multi_query") else one_of(config, *HEADS)
    if family == "Jamba":
        period, offset = config["attn_layer_period"], config["attn_layer_offset"]
        return [config["num_key_value_heads"] * (n % period == offset) for n in range(config["num_hidden_layers"])]
    count, types = config["num_key_value_heads"], config.get("layers_block_type") or config.get("layer_types") or []
    count = 1 if family == "KimiLinear" else count
    is_hybrid = family in ("NemotronH", "GraniteMoeHybrid", "KimiLinear") or "conv" in types
    return [count * (each == "full_attention") for each in types] if is_hybrid else count


def rope_of(config, family):
    parameters = config.get("rope_parameters") or {}
    by_type = ("Gemma3", "Gemma3n", "Gemma4", "Olmo3")
    return parameters.get("full_attention", parameters) if family in by_type else parameters


def add_config(writer, config, family):
    """The keys that llama.cpp's converter writes."""
    rope = rope_of(config, family)
    hidden = one_of(config, "hidden_size", "n_embd", "d_model", "n_embed")
    heads = 0 if family in HEADLESS else one_of(config, *HEADS)
    stated = None if family in (*HEADLESS, "GPT2", "GPTBigCode") else config.get("head_dim")
    head_dim = stated or hidden // (heads or 1)
    num_drafting = DRAFTING.get(family, 0)
    lengths = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
    writer.add_context_length(next((config[name] for name in lengths if config.get(name)), 1 << 20))
    writer.add_embedding_length(hidden)
    writer.add_block_count(num_layers(config) + num_drafting)
    if num_drafting:
        writer.add_nextn_predict_layers(num_drafting)
    writer.add_feed_forward_length(inner_size(config, family))
    writer.add_head_count(heads)
    if family == "Gemma4":
        add_gemma4(writer, config)
        writer.add_rope_freq_base(rope["rope_theta"])
    elif family in ("Bloom", "GPTBigCode", "Jamba", "Mpt"):
        writer.add_head_count_kv(heads_by_layer(config, family))
        if family == "Mpt":
            writer.add_max_alibi_bias(8)
    elif family != "GPT2" and heads:
        writer.add_head_count_kv(heads_by_layer(config, family))
        base = rope.get("rope_theta") or config.get("rope_theta", 10000.0)
        writer.add_rope_freq_base(base * rope.get("alpha", 1.0) ** (head_dim / (head_dim - 2)))
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    own_eps = {"Lfm2": "norm_eps", "Lfm2Moe": "norm_eps"}.get(family, "rms_norm_eps")
    if family == "GPTNeoX":
        writer.add_parallel_residual(config["use_parallel_residual"])
    if family == "Gemma3n":
        add_gemma3n(writer, config)
    if family in HEADLESS:
        writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    elif family == "NemotronH":  # whose files say it so
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    elif eps := config.get(own_eps):
        writer.add_layer_norm_rms_eps(eps)
    else:
        names = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
        writer.add_layer_norm_eps(next((config[name] for name in names if name in config), 1e-5))
    if family in (*DELTA_NETS, *HEADLESS, "NemotronH", "GraniteMoeHybrid", "FalconH1", "Jamba", "KimiLinear"):
        add_space(writer, config, family)
    if config.get("kv_lora_rank"):
        add_latent(writer, config, family)
    elif stated and family != "Gemma4":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if config.get("sliding_window") and family != "Dots1":
        writer.add_sliding_window(config["sliding_window"])
        if family in ("Olmo3", "Exaone4", "ExaoneMoe"):
            writer.add_sliding_window_pattern([each == "sliding_attention" for each in config["layer_types"]])
    add_experts(writer, config, family)
    for key, add in (
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ("attention_multiplier", writer.add_attention_scale),
        ("embedding_multiplier", writer.add_embedding_scale),
        ("residual_multiplier", writer.add_residual_scale),
        ("logits_scaling", writer.add_logit_scale),
        ("logit_scale", writer.add_logit_scale),
        ("conv_L_cache", writer.add_shortconv_l_cache),
    ):
        if config.get(key) and family != "FalconH1" and (writer.arch, key) != ("minicpm", "attention_multiplier"):
            add(config[key])
    kind = rope.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if family == "Ministral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    original = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    if original:
        writer.add_rope_scaling_orig_ctx_len(original)


DRAFTING = {"Glm4Moe": 1}


HEADLESS = ("Mamba", "FalconMamba", "Mamba2")
HEADS = ("num_attention_heads", "n_head", "n_heads")


def inner_size(config, family):
    if family in HEADLESS:
        return 0
    if family == "Llama4":
        return config["intermediate_size_mlp"]
    if family in ("GPT2", "GPTBigCode", "Bloom", "Mpt", "Falcon"):
        own = config.get("n_inner") or config.get("ffn_hidden_size")
        return own or 4 * one_of(config, "n_embd", "hidden_size", "d_model")
    if config.get("block_auto_adjust_ff_dim"):
        size, multiple = (
            int(config["block_ffn_dim_multiplier"] * int(2 * config["intermediate_size"] / 3)),
            config["block_multiple_of"],
        )
        return -(-size // multiple) * multiple
    if config.get("use_double_wide_mlp"):
        first = config["num_hidden_layers"] - config["num_kv_shared_layers"]
        return [config["intermediate_size"] * (1 + (n >= first)) for n in range(config["num_hidden_layers"])]
    if family == "NemotronH":
        sizes = {"mlp": config["intermediate_size"], "moe": config["moe_intermediate_size"]}
        return [sizes.get(each, 0) for each in config["layers_block_type"]]
    return config["intermediate_size"]


def add_experts(writer, config, family):
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    experts = next((config[name] for name in names if config.get(name)), None)
    if not experts or family == "NemotronH" and "moe" not in config["layers_block_type"]:
        return
    writer.add_expert_count(experts)
    used = one_of(config, "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k", "moe_topk")
    writer.add_expert_used_count(used[0] if isinstance(used, list) else used)
    writer.add_expert_feed_forward_length(config.get("moe_intermediate_size") or config["intermediate_size"])
    for key, add in (
        ("shared_expert_intermediate_size", writer.add_expert_shared_feed_forward_length),
        ("moe_shared_expert_intermediate_size", writer.add_expert_shared_feed_forward_length),
        ("moe_latent_size", writer.add_moe_latent_size),
        ("shared_intermediate_size", writer.add_expert_shared_feed_forward_length),
        ("n_shared_experts", writer.add_expert_shared_count),
        ("num_shared_experts", writer.add_expert_shared_count),
        ("moe_num_shared_experts", writer.add_expert_shared_count),
        ("first_k_dense_replace", writer.add_leading_dense_block_count),
        ("num_dense_layers", writer.add_leading_dense_block_count),
        ("moe_layer_start_index", writer.add_leading_dense_block_count),
        ("moe_layer_interval", writer.add_interleave_moe_layer_step),
        ("interleave_moe_layer_step", writer.add_interleave_moe_layer_step),
        ("n_group", writer.add_expert_group_count),
        ("num_expert_group", writer.add_expert_group_count),
        ("topk_group", writer.add_expert_group_used_count),
    ):
        if config.get(key) is not None:
            add(config[key])
    if family == "KimiLinear":
        writer.add_leading_dense_block_count(config["mlp_layer_types"].count("dense"))
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if "n_routed_experts" in config or family == "ExaoneMoe":
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if family in ("ExaoneMoe", "Glm4Moe", "Dots1", "Lfm2Moe", "MiniMaxM2"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
