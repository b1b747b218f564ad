"""Llama, and what was trained with its architecture by others: the `config.json` of their repositories."""

LLAMA3_ROPE = {
    "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip
LLAMA_31_8B = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": LLAMA3_ROPE, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
LLAMA_32_1B = LLAMA_31_8B | {
    "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "rope_scaling": LLAMA3_ROPE | {"factor": 32.0}, "tie_word_embeddings": True,
    "transformers_version": "4.45.0.dev0",
}  # fmt: skip

PUBLISHED = {
    "meta-llama/Llama-2-7b-chat-hf": {
        "_name_or_path": "meta-llama/Llama-2-7b-chat-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float16",
        "transformers_version": "4.32.0.dev0", "use_cache": True, "vocab_size": 32000,
    },
    "huggyllama/llama-7b": {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 2048,
        "max_sequence_length": 2048, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
        "pad_token_id": 0, "rms_norm_eps": 1e-06, "tie_word_embeddings": False, "torch_dtype": "float16",
        "transformers_version": "4.28.0.dev0", "use_cache": True, "vocab_size": 32000,
    },
    "meta-llama/Meta-Llama-3-8B-Instruct": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128009, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0", "use_cache": True, "vocab_size": 128256,
    },
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA_31_8B,
    "meta-llama/Llama-3.2-1B-Instruct": LLAMA_32_1B,
    "meta-llama/Llama-3.3-70B-Instruct": LLAMA_31_8B | {
        "head_dim": 128, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
        "num_hidden_layers": 80, "transformers_version": "4.47.0.dev0",
    },
    "unsloth/Llama-3.2-1B-Instruct": LLAMA_32_1B | {
        "_name_or_path": "meta-llama/Llama-3.2-1B-Instruct", "eos_token_id": 128009, "pad_token_id": 128004,
        "transformers_version": "4.46.1", "unsloth_fixed": True,
    },
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632,
        "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 22,
        "num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.35.0", "use_cache": True, "vocab_size": 32000,
    },
    "codellama/CodeLlama-7b-Instruct-hf": {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 16384,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.33.0.dev0",
        "use_cache": True, "vocab_size": 32016,
    },
    "lmsys/vicuna-7b-v1.5-16k": {
        "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 0, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 4.0, "type": "linear"}, "tie_word_embeddings": False,
        "torch_dtype": "float16", "transformers_version": "4.31.0", "use_cache": True, "vocab_size": 32000,
    },
    "01-ai/Yi-1.5-6B-Chat": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 4, "pad_token_id": 0, "pretraining_tp": 1,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.37.0", "use_cache": False, "vocab_size": 64000,
    },
    "deepseek-ai/deepseek-llm-7b-chat": {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 100000, "eos_token_id": 100001, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 30, "num_key_value_heads": 32,
        "pretraining_tp": 1, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": True,
        "vocab_size": 102400,
    },
    "deepseek-ai/deepseek-coder-1.3b-instruct": {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 32013, "eos_token_id": 32021, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5504, "max_position_embeddings": 16384,
        "model_type": "llama", "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 16,
        "pretraining_tp": 1, "rms_norm_eps": 1e-06, "rope_scaling": {"factor": 4.0, "type": "linear"},
        "rope_theta": 100000, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.33.1", "use_cache": True, "vocab_size": 32256,
    },
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": LLAMA_31_8B | {
        "bos_token_id": 128000, "eos_token_id": 128001, "transformers_version": "4.43.0.dev0",
    },
    "HuggingFaceTB/SmolLM2-135M-Instruct": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
        "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
        "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False,
        "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
        "transformers_version": "4.42.3", "use_cache": True, "vocab_size": 49152,
    },
    "NousResearch/Yarn-Llama-2-7b-64k": {
        "_name_or_path": "NousResearch/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_llama.LlamaConfig",
            "AutoModelForCausalLM": "modeling_llama_together_yarn.LlamaForCausalLM",
        },
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 11008, "max_position_embeddings": 65536, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 0,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 16.0, "finetuned": True, "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.31.0", "use_cache": True,
        "vocab_size": 32000,
    },
    "nvidia/Llama-3.1-Nemotron-Nano-8B-v1": LLAMA_31_8B | {
        "eos_token_id": [128001, 128008, 128009], "head_dim": 128, "transformers_version": "4.47.1",
    },
    "internlm/internlm3-8b-instruct": {
        "architectures": ["InternLM3ForCausalLM"], "attention_dropout": 0.0,
        "auto_map": {
            "AutoConfig": "configuration_internlm3.InternLM3Config",
            "AutoModel": "modeling_internlm3.InternLM3Model",
            "AutoModelForCausalLM": "modeling_internlm3.InternLM3ForCausalLM",
        },
        "bias": False, "bos_token_id": 1, "eos_token_id": [2, 128131], "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 10240, "max_position_embeddings": 32768,
        "model_type": "internlm3", "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 2,
        "pad_token_id": 2, "qkv_bias": False, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"}, "rope_theta": 50000000,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.47.1", "use_cache": True,
        "vocab_size": 128512,
    },
}  # fmt: skip
