"""Mistral, Google and Microsoft: the `config.json` of the repositories."""

MISTRAL_7B = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
PIXTRAL_TOWER = {
    "attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024, "image_size": 1540,
    "initializer_range": 0.02, "intermediate_size": 4096, "model_type": "pixtral", "num_attention_heads": 16,
    "num_channels": 3, "num_hidden_layers": 24, "patch_size": 14, "rope_theta": 10000.0,
}  # fmt: skip
SIGLIP_TOWER = {
    "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
    "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
GEMMA2_2B = {
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 107],
    "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
    "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "bfloat16",
    "transformers_version": "4.42.4", "use_cache": True, "vocab_size": 256000,
}  # fmt: skip
GEMMA3_1B = {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": None, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
    "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
    "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 32768,
    "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
    "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "use_cache": True, "vocab_size": 262144,
}  # fmt: skip
PHI_SIZES = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 32000,
    "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
    "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 32064,
}  # fmt: skip
PHI3_CODE = {
    "AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
}  # fmt: skip
SHORT = [1.0 + pair / 40 for pair in range(48)]
LONG = [1.0 + pair * 1.3 for pair in range(48)]

PUBLISHED = {
    "mistralai/Mistral-7B-v0.1": MISTRAL_7B,
    "mistralai/Mistral-7B-Instruct-v0.2": MISTRAL_7B | {
        "attention_dropout": 0.0, "rope_theta": 1000000.0, "sliding_window": None, "transformers_version": "4.36.0",
    },
    "mistralai/Mistral-7B-Instruct-v0.3": MISTRAL_7B | {
        "attention_dropout": 0.0, "rope_theta": 1000000.0, "sliding_window": None,
        "transformers_version": "4.42.0.dev0", "vocab_size": 32768,
    },
    "HuggingFaceH4/zephyr-7b-beta": MISTRAL_7B | {
        "_name_or_path": "HuggingFaceH4/mistral-7b-sft-beta", "pad_token_id": 2, "transformers_version": "4.35.0",
    },
    "mistralai/Mistral-Nemo-Instruct-2407": MISTRAL_7B | {
        "attention_dropout": 0.0, "head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 131072,
        "num_hidden_layers": 40, "rope_theta": 1000000.0, "sliding_window": None,
        "transformers_version": "4.43.0.dev0", "vocab_size": 131072,
    },
    "mistralai/Mistral-Small-24B-Instruct-2501": MISTRAL_7B | {
        "attention_dropout": 0.0, "head_dim": 128, "hidden_size": 5120, "intermediate_size": 32768,
        "num_hidden_layers": 40, "rope_theta": 100000000.0, "sliding_window": None, "transformers_version": "4.48.0",
        "vocab_size": 131072,
    },
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": {
        "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
        "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2,
        "text_config": {
            "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
            "initializer_range": 0.02, "intermediate_size": 32768, "max_position_embeddings": 131072,
            "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": None, "use_cache": True,
            "vocab_size": 131072,
        },
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "vision_config": PIXTRAL_TOWER,
        "vision_feature_layer": -1,
    },
    "mistralai/Ministral-8B-Instruct-2410": MISTRAL_7B | {
        "attention_dropout": 0.0, "head_dim": 128, "intermediate_size": 12288, "num_hidden_layers": 36,
        "rope_theta": 100000000.0, "sliding_window": 32768, "transformers_version": "4.46.0.dev0",
        "vocab_size": 131072,
    },
    "mistralai/Ministral-3-8B-Instruct-2512-BF16": {
        "architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16", "image_token_index": 10,
        "model_type": "mistral3", "multimodal_projector_bias": False, "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "text_config": {
            "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
            "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 262144,
            "model_type": "ministral3", "num_attention_heads": 32, "num_hidden_layers": 34, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
                "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0,
                "rope_type": "yarn", "type": "yarn",
            },
            "sliding_window": None, "tie_word_embeddings": False, "use_cache": True, "vocab_size": 131072,
        },
        "tie_word_embeddings": False, "transformers_version": "5.0.0.dev0", "vision_config": PIXTRAL_TOWER,
        "vision_feature_layer": -1,
    },
    "mistralai/Mixtral-8x7B-Instruct-v0.1": MISTRAL_7B | {
        "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "model_type": "mixtral",
        "num_experts_per_tok": 2, "num_local_experts": 8, "output_router_logits": False, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02, "sliding_window": None, "transformers_version": "4.36.0.dev0",
    },
    "google/gemma-2b-it": {
        "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2,
        "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu", "hidden_activation": None, "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 16384, "max_position_embeddings": 8192,
        "model_type": "gemma", "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
        "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0,
        "torch_dtype": "bfloat16", "transformers_version": "4.38.0.dev0", "use_cache": True, "vocab_size": 256000,
    },
    "google/gemma-2-2b-it": GEMMA2_2B,
    "google/gemma-2-27b-it": GEMMA2_2B | {
        "_attn_implementation": "eager", "eos_token_id": 1, "head_dim": 128, "hidden_size": 4608,
        "intermediate_size": 36864, "num_attention_heads": 32, "num_hidden_layers": 46, "num_key_value_heads": 16,
        "query_pre_attn_scalar": 144, "sliding_window_size": 4096, "transformers_version": "4.42.0.dev0",
    },
    "google/gemma-3-1b-it": GEMMA3_1B,
    "google/gemma-3-270m-it": GEMMA3_1B | {
        "_sliding_window_pattern": 6, "eos_token_id": 1, "hidden_size": 640, "intermediate_size": 2048,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3, "num_hidden_layers": 18,
        "rope_local_base_freq": 10000.0, "rope_theta": 1000000.0, "sliding_window_pattern": ...,
        "transformers_version": "4.55.0.dev0", "use_bidirectional_attention": False,
    },
    "google/gemma-3-4b-it": {
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
        "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "vision_config": SIGLIP_TOWER,
    },
    "google/gemma-3-27b-it": {
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
        "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504, "model_type": "gemma3_text",
            "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16,
            "query_pre_attn_scalar": 168, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "vision_config": SIGLIP_TOWER,
    },
    "google/gemma-3n-E2B-it": {
        "architectures": ["Gemma3nForConditionalGeneration"], "audio_soft_tokens_per_image": 188,
        "audio_token_id": 262273, "boa_token_id": 256000, "boi_token_id": 255999, "eoa_token_id": 262272,
        "eoi_token_id": 262144, "eos_token_id": [1, 106], "image_token_id": 262145, "initializer_range": 0.02,
        "model_type": "gemma3n",
        "text_config": {
            "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20, "altup_active_idx": 0,
            "altup_coef_clip": 120.0, "altup_correct_scale": True, "altup_lr_multiplier": 1.0,
            "altup_num_inputs": 4, "attention_bias": False, "attention_dropout": 0.0, "final_logit_softcapping": 30.0,
            "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2048,
            "hidden_size_per_layer_input": 256, "initializer_range": 0.02, "intermediate_size": [8192] * 30,
            "laurel_rank": 64,
            "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 6, "max_position_embeddings": 32768,
            "model_type": "gemma3n_text", "num_attention_heads": 8, "num_hidden_layers": 30,
            "num_key_value_heads": 2, "num_kv_shared_layers": 10, "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06, "rope_scaling": None,
            "rope_local_base_freq": 10000.0, "rope_theta": 1000000.0, "sliding_window": 512, "vocab_size": 262400,
            "vocab_size_per_layer_input": 262144,
        },
        "torch_dtype": "bfloat16", "transformers_version": "4.53.0.dev0",
    },
    "microsoft/phi-2": {
        "_name_or_path": "microsoft/phi-2", "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0,
        "bos_token_id": 50256, "embd_pdrop": 0.0, "eos_token_id": 50256, "hidden_act": "gelu_new",
        "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 10240, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "model_type": "phi", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "partial_rotary_factor": 0.4, "qk_layernorm": False, "resid_pdrop": 0.1,
        "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float16",
        "transformers_version": "4.37.0", "use_cache": True, "vocab_size": 51200,
    },
    "microsoft/Phi-3-mini-4k-instruct": PHI_SIZES | {
        "_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"], "auto_map": PHI3_CODE,
        "max_position_embeddings": 4096, "rope_scaling": None, "sliding_window": 2047,
        "transformers_version": "4.40.2",
    },
    "microsoft/Phi-3-mini-128k-instruct": PHI_SIZES | {
        "_name_or_path": "Phi-3-mini-128k-instruct", "architectures": ["Phi3ForCausalLM"], "auto_map": PHI3_CODE,
        "max_position_embeddings": 131072,
        "rope_scaling": {"long_factor": LONG, "short_factor": SHORT, "type": "longrope"}, "sliding_window": 262144,
        "transformers_version": "4.40.2",
    },
    "microsoft/Phi-3-mini-128k-instruct, first revision": PHI_SIZES | {
        "architectures": ["Phi3ForCausalLM"], "auto_map": PHI3_CODE, "max_position_embeddings": 131072,
        "rope_scaling": {"long_factor": LONG, "short_factor": SHORT, "type": "su"}, "sliding_window": 262144,
        "transformers_version": "4.39.3",
    },
    "microsoft/Phi-3.5-mini-instruct": PHI_SIZES | {
        "_name_or_path": "Phi-3.5-mini-instruct", "architectures": ["Phi3ForCausalLM"], "auto_map": PHI3_CODE,
        "max_position_embeddings": 131072,
        "rope_scaling": {"long_factor": LONG, "short_factor": SHORT, "type": "longrope"}, "sliding_window": 262144,
        "transformers_version": "4.43.3",
    },
    "microsoft/Phi-3.5-MoE-instruct": PHI_SIZES | {
        "architectures": ["PhiMoEForCausalLM"], "attention_bias": True, "hidden_dropout": 0.0, "hidden_size": 4096,
        "input_jitter_noise": 0.01, "intermediate_size": 6400, "lm_head_bias": True,
        "max_position_embeddings": 131072, "model_type": "phimoe", "num_experts_per_tok": 2,
        "num_key_value_heads": 8, "num_local_experts": 16, "output_router_logits": False,
        "rope_scaling": {
            "long_factor": LONG, "long_mscale": 1.243163121016122, "original_max_position_embeddings": 4096,
            "short_factor": SHORT, "short_mscale": 1.243163121016122, "type": "longrope",
        },
        "router_aux_loss_coef": 0.0, "router_jitter_noise": 0.01, "sliding_window": 131072,
        "transformers_version": "4.43.3",
    },
    "microsoft/phi-4": PHI_SIZES | {
        "_name_or_path": "pretrained/phi-4", "architectures": ["Phi3ForCausalLM"], "bos_token_id": 100257,
        "eos_token_id": 100265, "hidden_size": 5120, "intermediate_size": 17920, "max_position_embeddings": 16384,
        "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
        "original_max_position_embeddings": 16384, "pad_token_id": 100349, "rope_scaling": None,
        "rope_theta": 250000, "sliding_window": None, "transformers_version": "4.47.0", "vocab_size": 100352,
    },
    "microsoft/Phi-4-mini-instruct": PHI_SIZES | {
        "_name_or_path": "Phi-4-mini-instruct", "architectures": ["Phi3ForCausalLM"],
        "auto_map": PHI3_CODE | {"AutoTokenizer": "Xenova/gpt-4o"}, "bos_token_id": 199999, "eos_token_id": 199999,
        "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "max_position_embeddings": 131072,
        "mlp_bias": False, "num_attention_heads": 24, "num_key_value_heads": 8, "pad_token_id": 199999,
        "partial_rotary_factor": 0.75,
        "rope_scaling": {"long_factor": LONG, "short_factor": [1] * 48, "type": "longrope"},
        "sliding_window": 262144, "tie_word_embeddings": True, "transformers_version": "4.45.0",
        "vocab_size": 200064,
    },
}  # fmt: skip
