"""Qwen, from 1.5 to 3: the `config.json` of the repositories."""

QWEN25_7B = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944,
    "max_position_embeddings": 32768, "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1", "use_cache": True, "use_sliding_window": False, "vocab_size": 152064,
}  # fmt: skip
QWEN25_05B = QWEN25_7B | {
    "hidden_size": 896, "intermediate_size": 4864, "max_window_layers": 21, "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "sliding_window": 32768, "tie_word_embeddings": True,
    "vocab_size": 151936,
}  # fmt: skip
QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
QWEN3_32B = QWEN3_06B | {
    "hidden_size": 5120, "intermediate_size": 25600, "max_window_layers": 64, "num_attention_heads": 64,
    "num_hidden_layers": 64, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_30B_A3B = QWEN3_06B | {
    "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "hidden_size": 2048,
    "intermediate_size": 6144, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
    "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "tie_word_embeddings": False,
}  # fmt: skip
AWQ = {
    "bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm",
    "zero_point": True,
}  # fmt: skip
GPTQ = {
    "batch_size": 1, "bits": 4, "block_name_to_quantize": None, "cache_block_outputs": True, "damp_percent": 0.01,
    "dataset": None, "desc_act": False, "exllama_config": {"version": 1}, "group_size": 128,
    "max_input_length": None, "model_seqlen": None, "module_name_preceding_first_block": None,
    "modules_in_block_to_quantize": None, "pad_token_id": None, "quant_method": "gptq", "sym": True,
    "tokenizer": None, "true_sequential": True, "use_cuda_fp16": False, "use_exllama": True,
}  # fmt: skip
FP8 = {
    "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
}  # fmt: skip

PUBLISHED = {
    "Qwen/Qwen1.5-0.5B-Chat": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
        "intermediate_size": 2816, "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2",
        "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 16, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.37.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
    },
    "Qwen/Qwen2-0.5B-Instruct": QWEN25_05B | {
        "max_window_layers": 24, "sliding_window": 32768, "transformers_version": "4.40.1",
    },
    "Qwen/Qwen2.5-0.5B-Instruct": QWEN25_05B,
    "Qwen/Qwen2.5-7B-Instruct": QWEN25_7B,
    "Qwen/Qwen2.5-Coder-7B-Instruct": QWEN25_7B | {"transformers_version": "4.44.0"},
    "Qwen/Qwen2.5-7B-Instruct, as its card stretches it": QWEN25_7B | {
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    },
    "Qwen/Qwen2.5-7B-Instruct-1M": QWEN25_7B | {
        "dual_chunk_attention_config": {
            "chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144,
        },
        "max_position_embeddings": 1010000, "rope_theta": 10000000.0, "sliding_window": 1010000,
    },
    "Qwen/Qwen2.5-Math-1.5B-Instruct": QWEN25_7B | {
        "hidden_size": 1536, "intermediate_size": 8960, "max_position_embeddings": 4096, "max_window_layers": 21,
        "num_attention_heads": 12, "num_key_value_heads": 2, "rope_theta": 10000.0, "sliding_window": 4096,
        "tie_word_embeddings": True, "vocab_size": 151936,
    },
    "Qwen/QwQ-32B": QWEN25_7B | {
        "hidden_size": 5120, "intermediate_size": 27648, "max_position_embeddings": 40960, "max_window_layers": 64,
        "num_attention_heads": 40, "num_hidden_layers": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "sliding_window": 32768, "vocab_size": 152064,
    },
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": QWEN25_7B | {
        "bos_token_id": 151646, "eos_token_id": 151643, "hidden_size": 1536, "intermediate_size": 8960,
        "max_position_embeddings": 131072, "max_window_layers": 21, "num_attention_heads": 12,
        "num_key_value_heads": 2, "rope_theta": 10000, "sliding_window": 4096, "transformers_version": "4.44.0",
        "use_mrope": False, "vocab_size": 151936,
    },
    "Qwen/Qwen2.5-VL-3B-Instruct": {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 2048, "image_token_id": 151655,
        "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 128000,
        "max_window_layers": 70, "model_type": "qwen2_5_vl", "num_attention_heads": 16, "num_hidden_layers": 36,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"}, "rope_theta": 1000000.0,
        "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.41.2", "use_cache": True, "use_sliding_window": False, "video_token_id": 151656,
        "vision_config": {
            "depth": 32, "fullatt_block_indexes": [7, 15, 23, 31], "hidden_act": "silu", "hidden_size": 1280,
            "in_chans": 3, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048, "patch_size": 14,
            "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2, "tokens_per_second": 2,
            "window_size": 112,
        },
        "vision_end_token_id": 151653, "vision_start_token_id": 151652, "vision_token_id": 151654,
        "vocab_size": 151936,
    },
    "Qwen/Qwen3-0.6B": QWEN3_06B,
    "Qwen/Qwen3-32B": QWEN3_32B,
    "Qwen/Qwen3-4B, as its card stretches it": QWEN3_06B | {
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "rope_type": "yarn"},
    },
    "Qwen/Qwen3-4B-Instruct-2507": QWEN3_06B | {
        "hidden_size": 2560, "intermediate_size": 9728, "max_position_embeddings": 262144, "max_window_layers": 36,
        "num_attention_heads": 32, "num_hidden_layers": 36, "rope_theta": 5000000,
    },
    "Qwen/Qwen3-Embedding-0.6B": QWEN3_06B | {
        "eos_token_id": 151643, "max_position_embeddings": 32768, "transformers_version": "4.51.3",
        "vocab_size": 151669,
    },
    "Qwen/Qwen3-Reranker-0.6B": QWEN3_06B | {"vocab_size": 151669},
    "Qwen/Qwen3-30B-A3B": QWEN3_30B_A3B,
    "Qwen/Qwen3-30B-A3B-Instruct-2507": QWEN3_30B_A3B | {
        "max_position_embeddings": 262144, "rope_theta": 10000000,
    },
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": QWEN3_30B_A3B | {
        "intermediate_size": 5472, "max_position_embeddings": 262144, "max_window_layers": 28, "qkv_bias": False,
        "rope_theta": 10000000, "router_aux_loss_coef": 0.0, "shared_expert_intermediate_size": 0,
        "transformers_version": "4.52.3",
    },
    "Qwen/Qwen1.5-MoE-A2.7B-Chat": {
        "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "decoder_sparse_step": 1, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 5632, "max_position_embeddings": 8192,
        "max_window_layers": 21, "model_type": "qwen2_moe", "moe_intermediate_size": 1408, "norm_topk_prob": False,
        "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 16, "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.39.0.dev0",
        "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
    },
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {
        "architectures": ["Qwen3NextForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "full_attention_interval": 4,
        "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next",
        "moe_intermediate_size": 512, "norm_topk_prob": True, "num_attention_heads": 16, "num_experts": 512,
        "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2, "output_router_logits": False,
        "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000000,
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.57.0.dev0", "use_cache": True,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "Qwen/Qwen2.5-7B-Instruct-AWQ": QWEN25_7B | {"quantization_config": AWQ, "torch_dtype": "float16"},
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": QWEN25_7B | {"quantization_config": GPTQ, "torch_dtype": "float16"},
    "Qwen/Qwen3-0.6B-FP8": QWEN3_06B | {"quantization_config": FP8},
    "Qwen/Qwen3-30B-A3B-FP8": QWEN3_30B_A3B | {
        "quantization_config": FP8 | {
            "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm", "model.layers.0.mlp.gate"],
        },
    },
}  # fmt: skip
