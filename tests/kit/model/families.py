"""The families under test: their variants, and what `docs/models.md` says of them. transformers' class names.

Every variant stands beside transformers in `models/test_golden.py`, every key of `keys_base`'s config class in
`models/test_config_keys.py`, and every family in `engine/test_family.py`.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from kit.model.renamed import RENAMED

Options = dict[str, Any]

ROPE: dict[str, Options] = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 10000.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0},
}  # fmt: skip


@dataclass(frozen=True)
class Cases:
    """A family under test.

    Args:
        models: what people call the models.
        variants: by name, what differs from `golden.SIZES`.
        keys_base: what a file says beside the sizes, so that every key has an effect where it can; ...: nothing.
        engine: what differs in a whole engine: windows of 32 tokens, if the family has windows.
        features: for the documentation.
        is_rare: whole engines of it, and the walk over its keys, run with the slow tests; others are of its kind.
        loss: bound for the mean error of log-probabilities with bfloat16 or int8 weights, in `engine/test_family.py`.
    """

    models: str
    variants: dict[str, Options]
    keys_base: Options = field(default_factory=dict)
    engine: Options = field(default_factory=dict)
    features: str = ""
    loss: float = 0.06
    is_rare: bool = False


STRETCHED = {"rope_parameters": ROPE["yarn"] | {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.4}}
GEMMA = {"num_hidden_layers": 7, "sliding_window": 20}
GEMMA4 = {
    "num_hidden_layers": 7, "sliding_window": 20, "global_head_dim": 32, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 131,
}  # fmt: skip
GEMMA3N = {
    "num_hidden_layers": 6, "sliding_window": 20, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 100,
    "num_kv_shared_layers": 0, "laurel_rank": 12, "activation_sparsity_pattern": [0.9, 0.8, 0.0, 0.0, 0.0, 0.0],
}  # fmt: skip
WITHOUT_INPUTS = {key: value for key, value in GEMMA4.items() if "per_layer_input" not in key}
GEMMA4_MOE = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 24}
TWO_TYPES = {"layer_types": ["sliding_attention", "full_attention"] * 3}
SWITCHED = {"sliding_window": 20, "use_sliding_window": True}
IN_SOME_LAYERS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
TIED = {"tie_word_embeddings": True}
NO_ROPE = {"no_rope_layers": [1, 0, 1]}
MULTIPLIERS = {
    "embedding_multiplier": 1.5, "residual_multiplier": 0.6, "attention_multiplier": 0.3, "logits_scaling": 0.7,
}  # fmt: skip


def longrope(num_pairs: int, original: int) -> Options:
    """With another factor for every pair. transformers wants heads of hidden_size / num_attention_heads here."""
    return {
        "head_dim": 12,
        "original_max_position_embeddings": original,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": original,
            "short_factor": [1 + pair / 7 for pair in range(num_pairs)],
            "long_factor": [2 + pair / 3 for pair in range(num_pairs)],
        },
    }  # fmt: skip


def partial(parameters: Options, factor: float) -> Options:
    """The same rope for a part of every head."""
    return {**parameters, "rope_parameters": parameters["rope_parameters"] | {"partial_rotary_factor": factor}}


HALF = partial({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, 0.5)
OLMO3_ROPES = {
    "full_attention": {**ROPE["yarn"], "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
}


def block(group: int | None, factor: float | None, has_matrix: bool = False) -> Options:
    """A layer of DeciLM: queries of a key head, or none; the factor of an MLP's size, or none."""
    return {
        "attention": {"n_heads_in_group": group, "no_op": group is None and not has_matrix,
                      "replace_with_linear": has_matrix, "window_length": None},
        "ffn": {"ffn_mult": factor, "no_op": factor is None, "replace_with_linear": False},
    }  # fmt: skip


DECILM = {
    "head_dim": 12, "num_hidden_layers": 5, "rope_parameters": ROPE["llama3"],
    "block_configs": [
        block(2, 2.0), block(None, 1.3125), block(None, 2.0, has_matrix=True), block(2, 9.0), block(2, None),
    ],
}  # fmt: skip
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 5}
GLM = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_routed_experts": 6}
EXAONE_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 6}
DOTS = GLM | {"n_shared_experts": 1}
GROUPS = {"n_group": 3, "topk_group": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.7}
BAILING = MOE | {"num_shared_experts": 2, "mlp_only_layers": [], "norm_topk_prob": True}
BAILING2 = GLM | GROUPS | {"norm_topk_prob": True, "use_qk_norm": True}
LATENT = {
    "kv_lora_rank": 24, "q_lora_rank": 12, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 14,
    "num_key_value_heads": 4, "head_dim": ..., "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "n_routed_experts": 6,
}  # fmt: skip
DENSE_LATENT = {
    key: value for key, value in LATENT.items() if "experts" not in key and key != "moe_intermediate_size"
}  # fmt: skip
AFMOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 6}
YARN_ON_ALL = {"rope_parameters": ROPE["yarn"] | {"mscale": 0.7, "mscale_all_dim": 0.9}}
OSS = {"num_experts_per_tok": 2, "num_local_experts": 5}
LLAMA4 = {
    "num_local_experts": 5, "intermediate_size_mlp": 56, "attention_chunk_size": 20, "floor_scale": 32,
    "attn_scale": 0.4, "num_hidden_layers": 5,
}  # fmt: skip
MELLUM = MOE | {"sliding_window": 20, **IN_SOME_LAYERS}
MELLUM_ROPES = {"full_attention": {**ROPE["yarn"], "rope_theta": 5e5}, "sliding_attention": {"rope_theta": 100.0}}
HUNYUAN_ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}
PHIMOE_ROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32, "short_mscale": 1.3,
    "long_mscale": 1.3, "short_factor": [1 + pair / 7 for pair in range(6)], "long_factor": [2.0] * 6,
}  # fmt: skip
DELTA = {
    "full_attention_interval": 3, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}  # fmt: skip
WIDE_STATE = DELTA | {"linear_key_head_dim": 24, "linear_value_head_dim": 32}
MAMBA = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 12}
ZAMBA = {
    "n_mamba_heads": 8, "mamba_ngroups": 2, "mamba_d_state": 12, "head_dim": ..., "num_mem_blocks": 2,
    "adapter_rank": 10,
    "layers_block_type": ["linear_attention", "hybrid", "hybrid", "hybrid", "linear_attention"], "num_hidden_layers": 5,
    "use_shared_attention_adapter": True, "use_mem_rope": True, "num_logits_to_keep": 0,
    "num_key_value_heads": 4,
}  # fmt: skip
OLMO_HYBRID = {"rope_parameters": {"rope_type": "default", "rope_theta": None}, "head_dim": ...}
KIMI = {
    "kv_lora_rank": 24, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 14, "num_key_value_heads": 4,
    "head_dim": ..., "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_local_experts": 6,
    "linear_num_heads": 4, "linear_head_dim": 12, "num_hidden_layers": 5,
}  # fmt: skip
GRIFFIN = {"num_hidden_layers": 5, "attention_window_size": 20, "head_dim": ...}
SOME_MAMBA = MAMBA | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
FALCON = MAMBA | {
    "mamba_d_ssm": 72, "ssm_multipliers": [0.7, 1.3, 0.8, 1.2, 0.6], "mlp_multipliers": [0.9, 1.1],
    "key_multiplier": 0.8, "attention_in_multiplier": 1.2, "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.1,
    "ssm_out_multiplier": 0.8, "embedding_multiplier": 1.5, "lm_head_multiplier": 0.7,
}  # fmt: skip
HEADLESS = {
    "num_attention_heads": ..., "num_key_value_heads": ..., "head_dim": ..., "intermediate_size": ...,
    "max_position_embeddings": ...,
}  # fmt: skip
MAMBA2 = HEADLESS | {"num_heads": 8, "head_dim": 12, "n_groups": 2, "state_size": 10}
JAMBA = {
    "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
    "num_experts": 4, "mamba_d_state": 10, "head_dim": ...,
}  # fmt: skip
NEMOTRON = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"], "num_hidden_layers": ...,
    "mamba_num_heads": 6, "mamba_head_dim": 12, "n_groups": 2, "ssm_state_size": 10,
}  # fmt: skip
SPARSE_NEMOTRON = NEMOTRON | {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"], "n_routed_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40,
}  # fmt: skip
CONVOLUTIONS = {
    "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8, "block_ffn_dim_multiplier": 1.3,
    "head_dim": ...,
}  # fmt: skip
SPARSE_CONVOLUTIONS = {
    "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1, "num_experts": 5,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": ...,
}  # fmt: skip
COHERE_MOE = {"num_experts": 5, "num_experts_per_tok": 2, "sliding_window": 20, "logit_scale": 0.7}
MISTRAL4_ROPE = STRETCHED["rope_parameters"] | {"mscale": 1.0, "mscale_all_dim": 1.0}
LAGUNA_KINDS = ["sliding_attention", "full_attention"]
LAGUNA = AFMOE | IN_SOME_LAYERS | {"shared_expert_intermediate_size": 40, "sliding_window": 20}
LFM3 = {"num_hidden_layers": 5, "sliding_window": 20}
ERNIE = {"moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 24}
QUARTERS = {"head_dim": 12}  # transformers' OLMoE divides hidden_size by the heads for its norms
GPT2_SIZES = {
    "hidden_size": ..., "intermediate_size": ..., "num_hidden_layers": ..., "num_attention_heads": ...,
    "num_key_value_heads": ..., "max_position_embeddings": ..., "n_embd": 48, "n_layer": 2, "n_head": 4,
    "n_positions": 64, "n_inner": 40,
}  # fmt: skip

NEO = {
    "num_layers": 3, "num_hidden_layers": ..., "num_heads": 4, "num_attention_heads": ..., "window_size": 20,
    "attention_types": [[["global"], 1], [["local", "global"], 1]],
}  # fmt: skip
BLOOM = {"num_hidden_layers": ..., "num_attention_heads": ..., "n_layer": 3, "n_head": 4}
MPT = HEADLESS | {
    "hidden_size": ..., "num_hidden_layers": ..., "d_model": 48, "n_layers": 3, "n_heads": 4, "max_seq_len": 128,
}  # fmt: skip
UNGIVEN = {"head_dim": ...}  # it follows from other sizes
MODERNBERT = UNGIVEN | {"num_key_value_heads": ..., "local_attention": 40}
FALCON_GROUPS = UNGIVEN | {"new_decoder_architecture": True, "num_kv_heads": 2}
PARALLEL = {"use_parallel_residual": True}

MINICPM = {
    "embedding_multiplier": 2.0, "residual_multiplier": 0.8, "attention_multiplier": 0.25, "logits_scaling": 2.0,
}  # fmt: skip
QWEN = {"num_key_value_heads": 4, "head_dim": 12}
QWEN_BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
BAICHUAN = {"num_key_value_heads": 4, "head_dim": 12}
MINICPM_LONGROPE = longrope(6, 16) | {"attention_multiplier": 12**-0.5}
del MINICPM_LONGROPE["original_max_position_embeddings"]
ORION = UNGIVEN | {
    "partial_rotary_factor": 1.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
}


CASES = {
    "AXK1": Cases(
        "A.X K1",
        {
            "plain": LATENT | GROUPS,
            "yarn, dense layers, biases, tied": LATENT
            | TIED
            | YARN_ON_ALL
            | {"n_group": 1, "topk_group": 1, "mlp_layer_types": ["sparse", "dense", "sparse"], "attention_bias": True},
        },
        LATENT | GROUPS,
        LATENT | GROUPS,
        "as DeepSeek-V3, with a norm behind the experts",
        is_rare=True,
    ),
    "Arcee": Cases(
        "AFM-4.5B",
        {"plain": {}, "biases, tied": TIED | {"attention_bias": True, "mlp_bias": True}},
        features="an MLP of squared relu without gates",
        is_rare=True,
    ),
    "Cohere": Cases(
        "Command R (35B)",
        {
            "plain": UNGIVEN | {"logit_scale": 0.7},
            "other scale, biases, untied": {"logit_scale": 0.3, "attention_bias": True, "tie_word_embeddings": False},
        },
        {"logit_scale": 0.7},
        {"logit_scale": 0.7},
        "attention and MLP side by side; norms of mean and variance; pairs of neighbours turn; scaled logits",
        is_rare=True,
    ),
    "Cohere2": Cases(
        "Command R7B, Command A",
        {
            "windows in three of four layers": UNGIVEN
            | {"sliding_window": 20, "num_hidden_layers": 5, "logit_scale": 0.7},
            "biases, untied": IN_SOME_LAYERS
            | {"sliding_window": 7, "attention_bias": True, "tie_word_embeddings": False, "logit_scale": 0.3},
        },
        {"sliding_window": 7, "logit_scale": 0.7, "layer_types": ["sliding_attention", "full_attention"]},
        {"sliding_window": 32, "num_hidden_layers": 5, "logit_scale": 0.7},
        "as Command R; layers without a window do not rotate",
    ),
    "Cohere2Moe": Cases(
        "Command A Plus",
        {
            "windows in three of four layers, a dense layer": COHERE_MOE
            | {"first_k_dense_replace": 1, "num_hidden_layers": 5, "prefix_dense_intermediate_size": 56},
            "sigmoid, shared experts, biases, untied": COHERE_MOE
            | IN_SOME_LAYERS
            | {"expert_selection_fn": "sigmoid", "num_shared_experts": 2, "rms_norm_eps": 1e-5}
            | {"attention_bias": True, "tie_word_embeddings": False, "mlp_layer_types": ["sparse", "dense", "sparse"]}
            | {"prefix_dense_sliding_window_pattern": 2},
            "scores as they are, a sum": COHERE_MOE
            | {"expert_selection_fn": "sigmoid", "num_shared_experts": 1, "norm_topk_prob": False}
            | {"shared_expert_combination_strategy": "sum"},
        },
        COHERE_MOE
        | {"layer_types": ["sliding_attention", "full_attention"], "num_shared_experts": 1, "head_dim": 8}
        | {"expert_selection_fn": "sigmoid", "mlp_layer_types": ["dense", "sparse"]},
        COHERE_MOE | {"sliding_window": 32, "num_hidden_layers": 5, "num_shared_experts": 1},
        "as Command A, with experts, and maybe shared ones",
        loss=0.1,
        is_rare=True,
    ),
    "GPTJ": Cases(
        "GPT-J 6B",
        {"plain": {"rotary_dim": 8}, "other sizes, heads turn as a whole": {"n_inner": 40, "rotary_dim": 12}},
        GPT2_SIZES | {"rotary_dim": 8},
        {"rotary_dim": 8},
        "attention and MLP side by side; pairs of neighbours turn in a part of every head; a bias on the logits",
        is_rare=True,
    ),
    "GPTNeoX": Cases(
        "GPT-NeoX 20B, Pythia, Dolly 2",
        {
            "plain": UNGIVEN | partial(HALF, 0.5),
            "one after the other, no bias, tied": TIED
            | UNGIVEN
            | partial(HALF, 0.5)
            | {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"},
        },
        {"num_key_value_heads": ..., "hidden_size": 64},
        UNGIVEN | partial(HALF, 0.5),
        "attention and MLP side by side, each with a norm of its own; heads turn in part",
    ),
    "Gemma": Cases(
        "Gemma 1 (2B, 7B), CodeGemma",
        {
            "plain": {},
            "one kv head, biases, untied": {"tie_word_embeddings": False, "num_key_value_heads": 1}
            | {"attention_bias": True},
        },
        {"head_dim": 8},
        {"tie_word_embeddings": False},
        "scaled embeddings, wide heads",
        is_rare=True,
    ),
    "Helium": Cases(
        "Helium 1",
        {"plain": {"head_dim": 12}, "biases, tied": TIED | {"head_dim": 12, "attention_bias": True, "mlp_bias": True}},
        {"head_dim": 12},
        {"head_dim": 12},
        "pairs of neighbours turn",
        is_rare=True,
    ),
    "Nemotron": Cases(
        "Nemotron 3 and 4, Minitron 4B, 8B",
        {
            "plain": {},
            "biases, tied, a quarter turns": TIED | {"attention_bias": True, "mlp_bias": True} | partial(HALF, 0.25),
        },
        features="norms of mean and variance, an MLP of squared relu without gates; heads turn in part",
        is_rare=True,
    ),
    "Olmo": Cases(
        "OLMo 1B, 7B (0724)",
        {"plain": UNGIVEN, "one kv head, biases, tied": TIED | {"attention_bias": True, "num_key_value_heads": 1}},
        features="norms without weights",
        is_rare=True,
    ),
    "Phi": Cases(
        "Phi-1, Phi-1.5, Phi-2",
        {"plain": {}, "tied, one kv head, all turns": TIED | {"num_key_value_heads": 1} | partial(HALF, 1.0)},
        features="attention and MLP side by side; heads turn in part; a bias on the logits",
        is_rare=True,
    ),
    "StableLm": Cases(
        "StableLM 3B, StableLM 2 1.6B",
        {
            "plain": UNGIVEN | partial(HALF, 0.5),
            "side by side, biases, tied": TIED | UNGIVEN | PARALLEL | partial(HALF, 0.5) | {"use_qkv_bias": True},
        },
        partial(HALF, 0.5),
        UNGIVEN | partial(HALF, 0.5),
        "norms of mean and variance; heads turn in part",
        is_rare=True,
    ),
    "Starcoder2": Cases(
        "StarCoder 2 3B, 7B, 15B",
        {
            "plain": {},
            "window, no bias, untied": {"sliding_window": 7, "use_bias": False, "tie_word_embeddings": False},
        },
        {"sliding_window": 7},
        {"sliding_window": 32, "tie_word_embeddings": False},
        "norms of mean and variance, an MLP without gates, biases; a window in all layers, or none",
        is_rare=True,
    ),
    "Bamba": Cases(
        "Bamba 9B",
        {
            "plain": MAMBA | {"attn_layer_indices": [1]},
            "biases, tied, one group": TIED
            | {"mamba_n_heads": 4, "mamba_n_groups": 1, "mamba_d_state": 20, "mamba_proj_bias": True}
            | {"mamba_conv_bias": False, "attention_bias": True, "mlp_bias": True, "attn_layer_indices": [0, 2]},
        },
        MAMBA | {"attn_layer_indices": [1], "head_dim": 12},
        MAMBA | {"attn_layer_indices": [1]},
        "state spaces (Mamba 2) in most layers, attention whose heads turn in part",
        is_rare=True,
    ),
    "DeepseekV2": Cases(
        "DeepSeek-V2, DeepSeek-V2-Lite, DeepSeek-Coder-V2",
        {
            "plain, queries from hidden states (Lite)": LATENT | {"q_lora_rank": None, "first_k_dense_replace": 1},
            "groups, yarn, biases": LATENT
            | YARN_ON_ALL
            | {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.7}
            | {"attention_bias": True},
        },
        LATENT | {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2},
        LATENT | {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2, "first_k_dense_replace": 1},
        "latent vectors in the cache; softmax router with groups, shared experts",
        is_rare=True,
    ),
    "DeepseekV3": Cases(
        "DeepSeek-V3, DeepSeek-R1",
        {
            "plain": LATENT | GROUPS | {"first_k_dense_replace": 1},
            "yarn on all elements": LATENT | YARN_ON_ALL | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
            "halves turn, biases, tied": LATENT
            | GROUPS
            | TIED
            | {"rope_interleave": False, "attention_bias": True, "first_k_dense_replace": 2, "q_lora_rank": None},
        },
        LATENT | GROUPS | {"first_k_dense_replace": 1},
        LATENT | GROUPS | {"first_k_dense_replace": 1},
        "latent vectors in the cache; sigmoid router with correction and groups, shared experts",
    ),
    "Ernie4_5_Moe": Cases(
        "ERNIE 4.5 21B-A3B, 300B-A47B (text)",
        {
            "plain": ERNIE,
            "every second layer, untied, none shared": ERNIE
            | {"moe_layer_interval": 2, "moe_layer_start_index": 0, "moe_num_shared_experts": 0}
            | {"tie_word_embeddings": False, "head_dim": 12},
        },
        ERNIE | {"head_dim": 8},
        ERNIE | {"tie_word_embeddings": False},
        "softmax router with correction, shared experts; pairs of neighbours turn",
        is_rare=True,
    ),
    "GraniteMoe": Cases(
        "Granite 3, experts (1B-A400M, 3B-A800M)",
        {
            "plain": {"num_local_experts": 4},
            "multipliers, biases, tied": TIED
            | MULTIPLIERS
            | {"num_local_experts": 5, "attention_bias": True, "num_experts_per_tok": 3},
        },
        MULTIPLIERS | {"num_local_experts": 4},
        MULTIPLIERS | {"num_local_experts": 4},
        "as Granite, with experts",
        loss=0.1,
        is_rare=True,
    ),
    "GraniteMoeShared": Cases(
        "Granite 4 preview",
        {"plain": {"num_local_experts": 4, "shared_intermediate_size": 40}},
        MULTIPLIERS | {"num_local_experts": 4, "shared_intermediate_size": 40},
        MULTIPLIERS | {"num_local_experts": 4, "shared_intermediate_size": 40},
        "as Granite, with experts beside a shared one",
        loss=0.1,
        is_rare=True,
    ),
    "MiniMax": Cases(
        "MiniMax-Text-01, MiniMax-M1",
        {
            "plain": OSS,
            "factors, other layers, tied": TIED
            | OSS
            | {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "mlp_beta_factor": 0.7}
            | {"full_attn_alpha_factor": 3.5, "linear_attn_alpha_factor": 2.5, "mlp_alpha_factor": 1.5}
            | {"full_attn_beta_factor": 0.8, "linear_attn_beta_factor": 1.3},
        },
        OSS | {"head_dim": 8},
        OSS
        | {"linear_attn_alpha_factor": 2.5, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        "lightning attention, whose heads forget at fixed rates, in every second layer; experts; a residual stream "
        "of what norms give",
        is_rare=True,
    ),
    "MiniMaxM2": Cases(
        "MiniMax-M2",
        {
            "plain": OSS,
            "heads turn in part, tied, three experts a token": TIED | OSS | HALF | {"num_experts_per_tok": 3},
        },
        OSS | {"head_dim": 8},
        OSS | HALF,
        "sigmoid router with correction; norms over all heads of queries and keys; heads turn in part",
        is_rare=True,
    ),
    "Exaone4": Cases(
        "EXAONE 4",
        {
            "windows in three of four layers": {"sliding_window": 20, "num_hidden_layers": 5},
            "no windows, tied, one kv head": TIED
            | {"sliding_window": None, "layer_types": ["full_attention"] * 3, "num_key_value_heads": 1},
        },
        {"sliding_window": 7, "sliding_window_pattern": 2},
        {"sliding_window": 32, "num_hidden_layers": 5},
        "norms behind attention and MLP, head norms; layers without a window do not rotate",
        is_rare=True,
    ),
    "FalconH1": Cases(
        "Falcon-H1",
        {
            "plain": MAMBA | {"mamba_d_ssm": 72},
            "factors, norm behind the gates": FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
            "factors, gates behind the norm, biases, tied": TIED
            | FALCON
            | {"mamba_rms_norm": True, "projectors_bias": True, "mamba_proj_bias": True, "attention_bias": True}
            | {"mlp_bias": True, "mamba_conv_bias": False},
        },
        FALCON | {"head_dim": 12, "mamba_rms_norm": True},
        FALCON | {"mamba_d_ssm": None},
        "state spaces (Mamba 2) and attention side by side in every layer, factors on all of their parts",
    ),
    "Mamba": Cases(
        "Mamba 130M to 2.8B",
        {
            "plain": HEADLESS,
            "biases, untied, other sizes": HEADLESS
            | {"use_bias": True, "use_conv_bias": False, "time_step_rank": 7, "state_size": 9, "expand": 3}
            | {"conv_kernel": 3, "tie_word_embeddings": False},
            "a width of its own": HEADLESS | {"intermediate_size": 80},
        },
        HEADLESS | {"state_size": 6},
        HEADLESS | {"tie_word_embeddings": False},
        "state spaces (Mamba 1) and nothing else, without positions",
        is_rare=True,
    ),
    "FalconMamba": Cases(
        "Falcon Mamba 7B",
        {"plain": HEADLESS},
        HEADLESS | {"state_size": 6, "mixer_rms_eps": 0.01},
        HEADLESS | {"tie_word_embeddings": False},
        "as Mamba, with norms on what the states are written and read by",
    ),
    "Mamba2": Cases(
        "Mamba 2 130M to 2.7B, Mamba-Codestral 7B",
        {
            "plain": MAMBA2,
            "one group, biases, tied, bounded steps": MAMBA2
            | TIED
            | {"num_heads": 4, "head_dim": 24, "n_groups": 1, "use_bias": True, "use_conv_bias": False}
            | {"time_step_limit": [0.4, 0.6]},
        },
        MAMBA2,
        MAMBA2,
        "state spaces (Mamba 2) and nothing else, without positions",
    ),
    "Jamba": Cases(
        "Jamba 1.5, 1.6, 1.7, Jamba Reasoning 3B",
        {
            "plain": JAMBA,
            "dense, biases, tied": JAMBA | TIED | {"num_experts": 1, "mamba_proj_bias": True, "mamba_conv_bias": False},
        },
        JAMBA | {"attn_layer_period": 2},
        JAMBA,
        "state spaces (Mamba 1) in most layers, attention without rope, experts in every second layer",
        is_rare=True,
    ),
    "Falcon": Cases(
        "Falcon 7B, 40B, 180B, Falcon 2 11B, Falcon-RW",
        {
            "plain": UNGIVEN,
            "groups of heads, a norm for each (40B), biases, untied": FALCON_GROUPS
            | {"bias": True, "tie_word_embeddings": False, "ffn_hidden_size": 72},
            "groups of heads, one norm (11B)": FALCON_GROUPS | {"num_ln_in_parallel_attn": 1},
            "one after the other, keys of each head": UNGIVEN | {"parallel_attn": False, "multi_query": False},
            "scores fall with distance (RW)": UNGIVEN
            | {"parallel_attn": False, "multi_query": False, "alibi": True, "bias": True},
        },
        {"num_key_value_heads": ..., "num_kv_heads": 2, "new_decoder_architecture": True, "ffn_hidden_size": 40}
        | {"intermediate_size": ...},
        FALCON_GROUPS,
        "attention and MLP side by side, without gates; one key head, or groups",
        is_rare=True,
    ),
    "GPT2": Cases(
        "GPT-2",
        {
            "plain": {},
            "untied, relu, other eps": {
                "tie_word_embeddings": False,
                "n_inner": 40,
                "activation_function": "relu",
                "layer_norm_epsilon": 0.1,
            },
        },
        GPT2_SIZES,
        features="learned positions, layer norms",
    ),
    "OpenAIGPT": Cases(
        "GPT-1",
        {"plain": {"n_positions": 128}, "untied, relu": {"afn": "relu", "tie_word_embeddings": False}},
        {key: value for key, value in GPT2_SIZES.items() if key != "n_inner"},
        {"tie_word_embeddings": False},
        "learned positions, layer norms behind the sums",
        is_rare=True,
    ),
    "GPTBigCode": Cases(
        "StarCoder 1, SantaCoder",
        {"plain": {}, "keys of each head, untied": {"multi_query": False, "tie_word_embeddings": False, "n_inner": 40}},
        GPT2_SIZES,
        {"tie_word_embeddings": False},
        "as GPT-2, one key head",
        is_rare=True,
    ),
    "GPTNeo": Cases(
        "GPT-Neo 125M, 1.3B, 2.7B, TinyStories",
        {
            "plain": NEO,
            "windows in two of three layers, untied": NEO
            | {"attention_types": [[["local"], 2], [["global"], 1]], "window_size": 7, "tie_word_embeddings": False},
        },
        {"num_layers": 2, "num_hidden_layers": ..., "num_heads": 4, "num_attention_heads": ..., "window_size": 7}
        | {"attention_types": [[["global", "local"], 1]], "num_key_value_heads": ...},
        NEO | {"window_size": 32, "tie_word_embeddings": False},
        "learned positions, layer norms, windows in every second layer, scores as they are",
        is_rare=True,
    ),
    "BioGpt": Cases(
        "BioGPT",
        {
            "plain": UNGIVEN,
            "untied, relu": {"scale_embedding": False, "hidden_act": "relu", "tie_word_embeddings": False},
        },
        {"num_key_value_heads": ...},
        {"tie_word_embeddings": False},
        "learned positions, layer norms, scaled embeddings",
        is_rare=True,
    ),
    "Bloom": Cases(
        "BLOOM, BLOOMZ 560M to 7B",
        {
            "plain": UNGIVEN | BLOOM,
            "six heads, untied": UNGIVEN | BLOOM | {"n_head": 6, "tie_word_embeddings": False},
        },
        BLOOM | {"n_layer": 2, "intermediate_size": ..., "num_key_value_heads": ...},
        UNGIVEN | BLOOM | {"tie_word_embeddings": False},
        "scores that fall with distance, a norm behind the embedding",
    ),
    "ModernBertDecoder": Cases(
        "Ettin decoders (17M to 1B)",
        {
            "windows in two of three layers": MODERNBERT | {"num_hidden_layers": 5},
            "other layers, biases, untied": MODERNBERT
            | IN_SOME_LAYERS
            | {"attention_bias": True, "mlp_bias": True, "decoder_bias": False, "tie_word_embeddings": False}
            | {"hidden_activation": "silu"},
        },
        {"num_key_value_heads": ..., "head_dim": ..., "local_attention": 10},
        MODERNBERT | {"local_attention": 64, "num_hidden_layers": 4, "tie_word_embeddings": False},
        "norms of mean and variance, one behind the embedding; windows in two of three layers; a layer before the head",
        is_rare=True,
    ),
    "Mpt": Cases(
        "MPT 7B, 30B, Replit Code",
        {"plain": MPT, "six heads": MPT | {"n_heads": 6}},
        MPT | {"n_layers": 2, "n_heads": 4},
        MPT | {"max_seq_len": 256, "tie_word_embeddings": False},
        "scores that fall with distance, no biases",
        is_rare=True,
    ),
    "CodeGen": Cases(
        "CodeGen 350M to 16B",
        {"plain": {"rotary_dim": 8}, "other sizes, heads turn as a whole": {"n_inner": 40, "rotary_dim": 12}},
        GPT2_SIZES | {"rotary_dim": 8},
        {"rotary_dim": 8},
        "as GPT-J, its matrices fused in the checkpoint",
        is_rare=True,
    ),
    "Gemma2": Cases(
        "Gemma 2",
        {
            "capped": {"sliding_window": 20, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0},
            "as it is released, one kv head": {"sliding_window": 7, "num_key_value_heads": 1},
            "without caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        },
        {"sliding_window": 7, "head_dim": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
        {"sliding_window": 32, "query_pre_attn_scalar": 1, "attn_logit_softcapping": 2.0},
        "windows in every second layer, capped scores and logits, norms on both sides",
    ),
    "Gemma3": Cases(
        "Gemma 3 (text)",
        {
            "plain": GEMMA,
            "stretched, untied, other scale": GEMMA
            | {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                },
                "tie_word_embeddings": False,
                "query_pre_attn_scalar": 40,
                "attention_bias": True,
            },
            "capped logits, wide heads": GEMMA
            | {"final_logit_softcapping": 2.0, "head_dim": 256, "num_key_value_heads": 1, "sliding_window": 7},
        },
        {"sliding_window": 7, "head_dim": 8, "query_pre_attn_scalar": 8},
        {"num_hidden_layers": 7, "sliding_window": 32, "query_pre_attn_scalar": 16},
        "windows in five of six layers, a rope per kind of layer, head norms, norms on both sides",
    ),
    "Gemma3n": Cases(
        "Gemma 3n (text): E2B, E4B",
        {
            "plain": GEMMA3N,
            "shared keys and values, other streams, sizes by layer, biases, untied": GEMMA3N
            | TWO_TYPES
            | {"num_hidden_layers": 6, "num_kv_shared_layers": 3, "altup_num_inputs": 3, "altup_active_idx": 1}
            | {"altup_correct_scale": False, "intermediate_size": [72, 72, 40, 40, 24, 24], "attention_bias": True}
            | {"activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0, 0.0, 0.0], "tie_word_embeddings": False},
        },
        GEMMA3N
        | {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 7}
        | {"head_dim": 8, "vocab_size_per_layer_input": 40, "num_kv_shared_layers": 1}
        | {"activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.5]},
        GEMMA3N
        | {"layer_types": ["sliding_attention", "full_attention"] * 3, "num_hidden_layers": 6, "sliding_window": 32}
        | {"num_kv_shared_layers": 2, "vocab_size_per_layer_input": 2048}
        | {"activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0, 0.0, 0.0]},
        "four residual streams (AltUp), a learned part of them (LAuReL), MLPs with few gates, an embedding per layer, "
        "layers that share keys and values",
        loss=0.2,
    ),
    "Gemma4": Cases(
        "Gemma 4 (text): E2B, E4B, 31B, 26B-A4B",
        {
            "plain, one wide kv head": GEMMA4 | {"num_key_value_heads": 1},
            "shared keys and values, wider MLPs (E2B)": GEMMA4
            | TWO_TYPES
            | {"num_hidden_layers": 6, "num_kv_shared_layers": 3, "use_double_wide_mlp": True},
            "values are keys, fewer wide heads, no inputs (31B)": GEMMA4
            | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_key_value_heads": 4}
            | {"hidden_size_per_layer_input": 0, "final_logit_softcapping": 3.0, "tie_word_embeddings": False},
            "experts, biases, other ropes (26B)": GEMMA4
            | GEMMA4_MOE
            | {
                "attention_bias": True,
                "rope_parameters": {
                    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e5},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                },
            },
        },
        GEMMA4
        | GEMMA4_MOE
        | {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 7}
        | {"head_dim": 8, "global_head_dim": 12, "vocab_size_per_layer_input": 60, "num_kv_shared_layers": 1}
        | {"attention_k_eq_v": True},
        GEMMA4
        | {"layer_types": ["sliding_attention", "full_attention"] * 4, "num_hidden_layers": 8, "sliding_window": 32}
        | {"num_kv_shared_layers": 3, "use_double_wide_mlp": True, "attention_k_eq_v": True}
        | {"num_global_key_value_heads": 1, "num_key_value_heads": 4, "vocab_size_per_layer_input": 2048},
        "wider heads in full layers, layers that share keys and values, an embedding per layer, experts beside the MLP",
        loss=0.2,
    ),
    "Gemma4Unified": Cases(
        "Gemma 4 (text): 12B",
        {
            "values are keys, fewer wide heads": WITHOUT_INPUTS
            | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_key_value_heads": 4}
        },
        WITHOUT_INPUTS
        | {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 7}
        | {"head_dim": 8, "global_head_dim": 12, "attention_k_eq_v": True},
        WITHOUT_INPUTS | {"num_hidden_layers": 6, "sliding_window": 32, "attention_k_eq_v": True},
        "as Gemma 4, without embeddings per layer and experts",
        loss=0.2,
        is_rare=True,
    ),
    "Glm": Cases(
        "GLM-4-9B (2024), GLM-Edge",
        {
            "plain": {},
            "no bias, tied, a quarter turns": TIED | {"attention_bias": False} | partial(HALF, 0.25),
        },
        {"head_dim": 8},
        features="heads that turn in part, pairs of neighbours",
        is_rare=True,
    ),
    "Ernie4_5": Cases(
        "ERNIE 4.5, dense (0.3B)",
        {"plain": {"tie_word_embeddings": False}, "biases, tied": {"use_bias": True, "tie_word_embeddings": True}},
        {"head_dim": 8},
        features="pairs of neighbours turn",
        is_rare=True,
    ),
    "Dots1": Cases(
        "dots.llm1",
        {
            "plain": DOTS,
            "windows from a layer on, groups, biases": DOTS
            | GROUPS
            | {"sliding_window": 20, "max_window_layers": 1, "attention_bias": True, "first_k_dense_replace": 1},
        },
        DOTS | GROUPS,
        DOTS | GROUPS | {"sliding_window": 32, "max_window_layers": 1},
        "sigmoid router with correction and groups, shared experts; head norms; windows from a layer on",
        is_rare=True,
    ),
    "Glm4": Cases(
        "GLM-4-0414 (9B, 32B)",
        {
            "plain": {},
            "no bias, tied, a quarter turns": TIED | {"attention_bias": False} | partial(HALF, 0.25),
            "heads turn as a whole": {"partial_rotary_factor": 1.0},
        },
        {"head_dim": 8},
        features="norms on both sides, heads that turn in part, pairs of neighbours",
        is_rare=True,
    ),
    "Glm4Moe": Cases(
        "GLM-4.5",
        {
            "plain": GLM,
            "head norms, groups, no normalization": GLM | GROUPS | {"use_qk_norm": True},
            "two shared experts, biases, two dense layers": GLM
            | {"n_shared_experts": 2, "attention_bias": True, "first_k_dense_replace": 2},
            "heads turn as a whole, tied": GLM | TIED | {"partial_rotary_factor": 1.0},
        },
        GLM | GROUPS | {"use_qk_norm": True},
        GLM | GROUPS | {"use_qk_norm": True},
        "sigmoid router with correction and groups, shared experts, heads that turn in part",
    ),
    "SolarOpen": Cases(
        "Solar Open 100B",
        {"plain": GLM, "groups, biases, tied": GLM | GROUPS | TIED | {"attention_bias": True, "n_shared_experts": 2}},
        GLM | GROUPS | {"head_dim": 12},
        GLM | GROUPS,
        "as GLM-4.5, with experts in every layer and heads that turn as a whole",
        loss=0.1,
        is_rare=True,
    ),
    "ExaoneMoe": Cases(
        "K-EXAONE 236B-A23B",
        {
            "plain": EXAONE_MOE | {"num_hidden_layers": 5, "sliding_window": 20},
            "groups, no rotation, tied": EXAONE_MOE
            | GROUPS
            | TIED
            | {"layer_types": ["full_attention"] * 3}
            | {"mlp_layer_types": ["sparse", "dense", "sparse"], "num_shared_experts": 2},
        },
        EXAONE_MOE | GROUPS | {"num_experts": 6, "sliding_window": 7, "sliding_window_pattern": 2},
        EXAONE_MOE | {"num_hidden_layers": 5, "sliding_window": 32},
        "head norms; layers without a window do not rotate; sigmoid router with correction and groups, shared experts",
        loss=0.1,
        is_rare=True,
    ),
    "Glm4MoeLite": Cases(
        "GLM-4.7-Flash",
        {
            "plain": LATENT,
            "groups, other layers dense": LATENT | GROUPS | {"mlp_layer_types": ["sparse", "dense", "sparse"]},
        },
        LATENT | GROUPS,
        LATENT | GROUPS,
        "as DeepSeek-V3, one dense layer in front",
        is_rare=True,
    ),
    "GptOss": Cases(
        "gpt-oss-20b, gpt-oss-120b",
        {
            "plain": OSS | {"sliding_window": 20},
            "tight clamp, other gain, no bias, tied": OSS
            | TIED
            | {"swiglu_alpha": 0.9, "swiglu_limit": 0.4, "attention_bias": False, "sliding_window": 7},
            "windows at the end, three experts a token, no yarn": OSS
            | {"num_experts_per_tok": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
            | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "sliding_window": 9},
        },
        OSS | {"sliding_window": 7, "head_dim": 8, "swiglu_limit": 0.6},
        OSS | {"sliding_window": 32, "swiglu_limit": 0.6},
        "attention sinks; windows in every second layer; experts with clamped gates and biases, also in MXFP4",
    ),
    "Granite": Cases(
        "Granite 3 and 4, dense",
        {
            "plain": {},
            "multipliers": MULTIPLIERS,
            "multipliers, biases, tied": MULTIPLIERS | TIED | {"attention_bias": True, "mlp_bias": True},
        },
        MULTIPLIERS,
        MULTIPLIERS | TIED,
        "factors on embedding, residual stream, scores and logits",
    ),
    "GraniteMoeHybrid": Cases(
        "Granite 4 H; Granite 4 micro and nano",
        {
            "plain": SOME_MAMBA | {"num_local_experts": 4},
            "dense, rope, multipliers, biases, tied": TIED
            | MULTIPLIERS
            | SOME_MAMBA
            | {"num_local_experts": 0, "position_embedding_type": "rope", "attention_bias": True}
            | {"mamba_proj_bias": True, "mamba_conv_bias": False},
            "attention in all layers": MAMBA
            | MULTIPLIERS
            | {"num_local_experts": 0, "layer_types": ["full_attention"] * 3, "position_embedding_type": "rope"},
        },
        MAMBA | MULTIPLIERS | {"num_local_experts": 4, "layer_types": ["linear_attention", "full_attention"]},
        SOME_MAMBA | MULTIPLIERS | {"num_local_experts": 4},
        "state spaces (Mamba 2) in most layers, attention without rope, experts beside a shared one, or dense; factors "
        "on embedding, residual stream, scores and logits",
    ),
    "Lfm2": Cases(
        "LFM2 350M, 700M, 1.2B, 2.6B",
        {
            "plain": CONVOLUTIONS,
            "biases, untied, longer filters, size as stated": CONVOLUTIONS
            | {"conv_bias": True, "conv_L_cache": 5, "tie_word_embeddings": False, "block_auto_adjust_ff_dim": False},
        },
        CONVOLUTIONS | {"layer_types": ["conv", "full_attention"]},
        CONVOLUTIONS,
        "gated short convolutions in most layers, attention with head norms",
        is_rare=True,
    ),
    "Lfm2Moe": Cases(
        "LFM2 8B-A1B",
        {
            "plain": SPARSE_CONVOLUTIONS,
            "no correction, no normalization, biases, untied": SPARSE_CONVOLUTIONS
            | {"use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.7, "conv_bias": True}
            | {"tie_word_embeddings": False},
        },
        SPARSE_CONVOLUTIONS | {"layer_types": ["conv", "full_attention"]},
        SPARSE_CONVOLUTIONS,
        "as LFM2, with experts behind a sigmoid router with correction",
    ),
    "Laguna": Cases(
        "Laguna XS.2 33B-A3B",
        {
            "plain": LAGUNA,
            "heads by layer, a rope for all, gates per element, tied": LAGUNA
            | TIED
            | {"num_attention_heads_per_layer": [4, 6, 2], "gating": "per-element", "moe_routed_scaling_factor": 1.7}
            | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
            | {"mlp_layer_types": ["sparse", "dense", "sparse"]}
            | {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in LAGUNA_KINDS}},
        },
        LAGUNA | {"layer_types": LAGUNA_KINDS, "num_attention_heads_per_layer": [4, 2], "head_dim": 8},
        LAGUNA | {"sliding_window": 32, "num_attention_heads_per_layer": [4, 6, 4]},
        "windows in some layers, query heads and ropes by layer, head norms, gates per head on what attention gives; "
        "sigmoid router with correction, a shared expert",
        loss=0.1,
        is_rare=True,
    ),
    "Lfm3": Cases(
        "LFM3 1.7B",
        {
            "plain": LFM3,
            "norms in front alone, no gates, biases, untied": LFM3
            | {"use_sandwich_norm": False, "use_attention_gate": False, "conv_bias": True}
            | {"tie_word_embeddings": False, "conv_L_cache": 4}
            | {"layer_types": ["conv", "full_attention", "sliding_attention"], "num_hidden_layers": 3},
        },
        LFM3 | {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "sliding_attention"], "head_dim": 8},
        LFM3 | {"sliding_window": 32},
        "as LFM2; attention has a window in some layers, a rope per kind of layer, and a gate per head; norms on both "
        "sides",
    ),
    "Llama": Cases(
        "Llama 1 to 3.3, and the many checkpoints of its shape",
        {
            "plain": {},
            "tied": TIED,
            "attention bias": {"attention_bias": True},
            "all biases, one kv head": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
            "no groups, other eps": {"num_key_value_heads": 4, "rms_norm_eps": 1e-2},
            "gelu": {"hidden_act": "gelu"},
            **{kind: {"rope_parameters": parameters} for kind, parameters in ROPE.items()},
        },
        engine=TIED,
        features="rope: linear, dynamic, llama3, yarn; biases",
    ),
    "Llama4": Cases(
        "Llama 4 Scout, Maverick (text)",
        {
            "chunks of 20, queries stretched from 32 on": LLAMA4,
            "other layers, biases, tied, two experts a token, no norms": LLAMA4
            | TIED
            | {"num_hidden_layers": 3}
            | {"layer_types": ["chunked_attention", "full_attention", "chunked_attention"], "moe_layers": [0, 2]}
            | {"no_rope_layers": [1, 1, 0], "attention_bias": True, "use_qk_norm": False, "num_experts_per_tok": 2}
            | {"attention_chunk_size": 32, "floor_scale": 7},
            "dense layers between, llama3 without a ramp": LLAMA4
            | {"interleave_moe_layer_step": 2, "attn_temperature_tuning": False}
            | {"rope_parameters": ROPE["llama3"] | {"high_freq_factor": 1.0}},
        },
        LLAMA4
        | {"attention_chunk_size": 7, "head_dim": 8, "no_rope_layer_interval": 2, "floor_scale": 8}
        | {"num_hidden_layers": 2},
        LLAMA4 | {"attention_chunk_size": 32},
        "layers that see chunks, and layers that see all, without rope; head norms without weights; queries that grow; "
        "experts that read rows times their scores, a shared one",
    ),
    "Ministral": Cases(
        "Ministral 8B",
        {
            "windows in some layers": IN_SOME_LAYERS | {"sliding_window": 20},
            "in all layers": {"sliding_window": 7},
            "one kv head, tied": TIED | IN_SOME_LAYERS | {"sliding_window": 7, "num_key_value_heads": 1},
        },
        {"sliding_window": 7, "head_dim": 12, "layer_types": ["sliding_attention", "full_attention"]},
        IN_SOME_LAYERS | {"sliding_window": 32},
        "windows in some layers",
        is_rare=True,
    ),
    "Ministral3": Cases(
        "Ministral 3 3B, 8B, 14B; with a tower: Mistral Small 3.1 and later",
        {
            "plain": {},
            "stretched from 16 on": STRETCHED,
            "stretched, window, tied": TIED | STRETCHED | {"sliding_window": 20},
        },
        STRETCHED | {"head_dim": 8},
        STRETCHED,
        "yarn; queries that grow behind the trained length",
    ),
    "Mistral4": Cases(
        "Mistral Small 4 119B",
        {
            "plain": LATENT | {"rope_parameters": MISTRAL4_ROPE, "n_group": 1, "topk_group": 1},
            "groups, dense layers, halves turn, biases, tied": LATENT
            | GROUPS
            | TIED
            | {"rope_parameters": MISTRAL4_ROPE, "first_k_dense_replace": 1, "rope_interleave": False}
            | {"attention_bias": True, "q_lora_rank": None},
        },
        LATENT | GROUPS | {"rope_parameters": MISTRAL4_ROPE},
        LATENT | {"rope_parameters": MISTRAL4_ROPE},
        "latent vectors in the cache; softmax router, shared experts; queries that grow behind the trained length",
        loss=0.1,
        is_rare=True,
    ),
    "Mistral": Cases(
        "Mistral 7B",
        {"plain": {"sliding_window": None}, "window": {"sliding_window": 32}, "small": {"sliding_window": 7, **TIED}},
        {"sliding_window": 7},
        {"sliding_window": 32},
        "a window in all layers, or none",
    ),
    "Mixtral": Cases(
        "Mixtral 8x7B, 8x22B",
        {
            "plain": {"num_local_experts": 4},
            "window, tied, one expert a token": TIED
            | {"num_local_experts": 4, "sliding_window": 7, "num_experts_per_tok": 1},
        },
        {"num_local_experts": 4, "sliding_window": 7},
        {"num_local_experts": 4, "sliding_window": 32},
        "experts; a window in all layers, or none",
    ),
    "NemotronH": Cases(
        "Nemotron-H 8B, 47B, 56B, Nemotron-Nano 9B v2, 12B v2; Nemotron 3 Nano 30B-A3B, Super",
        {
            "plain": NEMOTRON,
            "biases, one group": NEMOTRON
            | {"n_groups": 1, "use_bias": True, "mlp_bias": True, "use_conv_bias": False}
            | {"layers_block_type": ["full_attention", "linear_attention", "mlp"]},
            "experts (Nemotron 3 Nano)": SPARSE_NEMOTRON | GROUPS,
            "experts between projections (Nemotron 3 Super)": SPARSE_NEMOTRON | {"moe_latent_size": 20},
        },
        SPARSE_NEMOTRON | GROUPS | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"]},
        SPARSE_NEMOTRON
        | GROUPS
        | {"layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "mlp"]},
        "every layer a state space (Mamba 2), attention without rope, or an MLP or experts of squared relu without "
        "gates; sigmoid router with correction and groups, a shared expert",
        loss=0.1,
    ),
    "Olmo2": Cases(
        "OLMo 2",
        {"plain": {}, "one kv head, biases, tied": TIED | {"attention_bias": True, "num_key_value_heads": 1}},
        features="norms behind attention and MLP, and over all heads of queries and keys",
        is_rare=True,
    ),
    "Olmo3": Cases(
        "OLMo 3",
        {
            "plain": {"sliding_window": 20, "num_hidden_layers": 5},
            "stretched in full layers": IN_SOME_LAYERS | {"sliding_window": 7, "rope_parameters": OLMO3_ROPES},
        },
        {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
        {"sliding_window": 32, "num_hidden_layers": 5},
        "as OLMo 2, with windows in three of four layers",
    ),
    "FlexOlmo": Cases(
        "FlexOlmo 7x7B",
        {
            "plain": {"num_experts": 5, "num_experts_per_tok": 2},
            "normalized, biases, tied": TIED
            | {"num_experts": 4, "num_experts_per_tok": 3, "norm_topk_prob": True, "attention_bias": True},
        },
        {"num_experts": 5, "num_experts_per_tok": 2, "head_dim": 12},
        {"num_experts": 5, "num_experts_per_tok": 2},
        "as OLMo 2, with experts",
        is_rare=True,
    ),
    "OPT": Cases(
        "OPT",
        {
            "plain": {"ffn_dim": 72},
            "projected, norms behind (350m)": {"ffn_dim": 72, "word_embed_proj_dim": 24, "do_layer_norm_before": False},
            "no bias, untied, gelu": {
                "ffn_dim": 72,
                "enable_bias": False,
                "tie_word_embeddings": False,
                "activation_function": "gelu",
            },
        },
        {"ffn_dim": 40, "intermediate_size": ..., "num_key_value_heads": ...},
        {"ffn_dim": 72, "word_embed_proj_dim": 24},
        "learned positions, layer norms before or behind",
    ),
    "Olmoe": Cases(
        "OLMoE",
        {
            "plain": QUARTERS | {"num_experts": 5, "num_experts_per_tok": 2},
            "normalized, biases, tied": QUARTERS
            | TIED
            | {"num_experts": 5, "num_experts_per_tok": 3, "norm_topk_prob": True, "attention_bias": True},
        },
        {"num_experts": 5, "num_experts_per_tok": 2},
        QUARTERS | {"num_experts": 5, "num_experts_per_tok": 2},
        "experts; norms over all heads of queries and keys",
    ),
    "Phi3": Cases(
        "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
        {
            "plain": {},
            "window, tied": TIED | {"sliding_window": 7},
            "heads turn in part": HALF,
            "longrope, long": longrope(6, 16),
            "longrope, short": longrope(6, 128),
            "longrope, heads turn in part, one kv head": partial(longrope(3, 16), 0.5) | {"num_key_value_heads": 1},
        },
        {"sliding_window": 7, **HALF},
        {"sliding_window": 32, **HALF},
        "matrices fused in the checkpoint, heads that turn in part, longrope, a window",
    ),
    "Qwen2": Cases(
        "Qwen2, Qwen2.5",
        {"plain": {}, "tied, one kv head": TIED | {"num_key_value_heads": 1}, "window": SWITCHED | IN_SOME_LAYERS},
        SWITCHED | {"sliding_window": 7, "max_window_layers": 1},
        SWITCHED | {"sliding_window": 32, "max_window_layers": 1},
        "biases on queries, keys and values; windows from a layer on, if switched on",
    ),
    "Qwen2Moe": Cases(
        "Qwen1.5-MoE, Qwen2-MoE",
        {
            "plain": MOE | {"shared_expert_intermediate_size": 40},
            "some layers dense, window, no bias, normalized": MOE
            | SWITCHED
            | {"decoder_sparse_step": 2, "qkv_bias": False, "norm_topk_prob": True},
        },
        MOE | SWITCHED | {"sliding_window": 7, "shared_expert_intermediate_size": 40},
        MOE | SWITCHED | {"sliding_window": 32, "shared_expert_intermediate_size": 40},
        "experts, one shared behind a gate; windows, if switched on",
        is_rare=True,
    ),
    "Qwen3": Cases(
        "Qwen3, dense",
        {
            "plain": {},
            "tied": TIED,
            "bias, no groups": {"attention_bias": True, "num_key_value_heads": 4},
            "one kv head, wide heads": {"num_key_value_heads": 1, "head_dim": 32},
            "window": SWITCHED | {"max_window_layers": 0},
            "window in some layers": SWITCHED | IN_SOME_LAYERS,
            "yarn": {"rope_parameters": ROPE["yarn"]},
        },
        SWITCHED | {"sliding_window": 7, "max_window_layers": 1, "head_dim": 8},
        features="head norms; windows from a layer on, if switched on",
    ),
    "Qwen3Moe": Cases(
        "Qwen3-30B-A3B, Qwen3-235B-A22B",
        {
            "plain": MOE,
            "a dense layer, window, biases, normalized": MOE
            | SWITCHED
            | {"mlp_only_layers": [1], "attention_bias": True, "norm_topk_prob": True},
        },
        MOE | SWITCHED | {"sliding_window": 7, "head_dim": 8},
        MOE,
        "experts; head norms; windows, if switched on",
    ),
    "SeedOss": Cases(
        "Seed-OSS-36B",
        {
            "plain": {},
            "other biases, tied": TIED | {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
        },
        {"head_dim": 8},
        features="biases on queries, keys and values",
        is_rare=True,
    ),
    "Qwen3Next": Cases(
        "Qwen3-Next-80B-A3B",
        {
            "plain": MOE | DELTA | {"shared_expert_intermediate_size": 40},
            "a head of each, biases, dense layers, tied": MOE
            | TIED
            | {"full_attention_interval": 2, "linear_num_key_heads": 1, "linear_num_value_heads": 1}
            | {"linear_key_head_dim": 12, "linear_value_head_dim": 20, "linear_conv_kernel_dim": 3}
            | {"attention_bias": True, "decoder_sparse_step": 2, "mlp_only_layers": [0], "norm_topk_prob": False},
            "states over several blocks": MOE
            | WIDE_STATE
            | {"num_hidden_layers": 5, "full_attention_interval": 5, "num_experts_per_tok": 1, "hidden_size": 64},
        },
        MOE | DELTA | {"shared_expert_intermediate_size": 40, "full_attention_interval": 2, "head_dim": 8},
        MOE | DELTA,
        "gated delta nets in three of four layers, attention with an output gate, experts, one shared behind a gate",
        loss=0.1,
    ),
    "Qwen3_5": Cases(
        "Qwen3.5, dense (text)",
        {
            "plain": DELTA,
            "wide states, tied, heads turn as a whole": TIED
            | WIDE_STATE
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
        },
        DELTA | {"full_attention_interval": 2, "head_dim": 8},
        DELTA | TIED | {"linear_key_head_dim": 12, "linear_value_head_dim": 16},
        "gated delta nets in three of four layers, attention with an output gate",
    ),
    "Qwen3_5Moe": Cases(
        "Qwen3.5, experts (text)",
        {"plain": MOE | DELTA | {"shared_expert_intermediate_size": 40}},
        MOE | DELTA | {"shared_expert_intermediate_size": 40, "full_attention_interval": 2, "head_dim": 8},
        MOE | DELTA,
        "as Qwen3.5, with experts, one shared behind a gate",
        loss=0.1,
        is_rare=True,
    ),
    "Apertus": Cases(
        "Apertus 8B, 70B",
        {
            "plain": UNGIVEN,
            "plain rope, biases, tied, one kv head": TIED
            | UNGIVEN
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "attention_bias": True}
            | {"num_key_value_heads": 1},
        },
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
        UNGIVEN,
        "head norms, an MLP without gates whose activation is learned",
    ),
    "Cwm": Cases(
        "Code World Model 32B",
        {
            "windows in three of four layers": {"sliding_window": 20, "num_hidden_layers": 5},
            "plain rope, biases, tied": TIED
            | IN_SOME_LAYERS
            | {"sliding_window": 7, "mlp_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        },
        {"sliding_window": 7, "head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
        {"sliding_window": 32, "num_hidden_layers": 5},
        "windows in three of four layers",
        is_rare=True,
    ),
    "GraniteSWA": Cases(
        "Granite with windows",
        {
            "windows in three of four layers": {"sliding_window": 20, "num_hidden_layers": 5} | UNGIVEN,
            "other ropes and none, multipliers, biases, untied": MULTIPLIERS
            | UNGIVEN
            | IN_SOME_LAYERS
            | {"sliding_window": 7, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
            | {"layer_rope_theta": [1e4, 0, 500.0]},
        },
        MULTIPLIERS | {"sliding_window": 7},
        MULTIPLIERS | UNGIVEN | {"sliding_window": 32, "num_hidden_layers": 5},
        "as Granite, with windows in three of four layers, attention sinks, a rope per layer",
        is_rare=True,
    ),
    "GraniteMoeSWA": Cases(
        "Granite with windows, experts",
        {
            "plain": UNGIVEN | {"sliding_window": 20, "num_local_experts": 4, "shared_intermediate_size": 40},
            "other ropes and none, multipliers": MULTIPLIERS
            | UNGIVEN
            | IN_SOME_LAYERS
            | {"sliding_window": 7, "num_local_experts": 5, "layer_rope_theta": [1e4, 0, 500.0]},
        },
        MULTIPLIERS | {"sliding_window": 7, "num_local_experts": 4, "shared_intermediate_size": 40},
        MULTIPLIERS | UNGIVEN | {"sliding_window": 32, "num_local_experts": 4},
        "as Granite with windows, with experts",
        loss=0.1,
        is_rare=True,
    ),
    "HunYuanDenseV1": Cases(
        "HunYuan 0.5B, 1.8B, 4B, 7B",
        {
            "plain": {},
            "a larger base frequency, biases, tied": TIED
            | {"attention_bias": True, "rope_parameters": HUNYUAN_ROPE, "num_key_value_heads": 1},
        },
        {"head_dim": 8},
        {"rope_parameters": HUNYUAN_ROPE},
        "head norms behind the rotation",
        is_rare=True,
    ),
    "HunYuanMoEV1": Cases(
        "HunYuan A13B",
        {
            "plain": {"num_experts": 5, "moe_topk": 2},
            "a larger base frequency, biases, tied": TIED
            | {"num_experts": 4, "moe_topk": [3, 3, 3], "attention_bias": True, "rope_parameters": HUNYUAN_ROPE},
        },
        {"num_experts": 4, "moe_topk": 2, "head_dim": 8},
        {"num_experts": 5, "moe_topk": 2},
        "as HunYuan, with experts and a shared one",
        is_rare=True,
    ),
    "HyperCLOVAX": Cases(
        "HyperCLOVA X SEED Think",
        {
            "plain": UNGIVEN,
            "multipliers, biases, tied": TIED | MULTIPLIERS | {"attention_bias": True, "mlp_bias": True},
            "norms in front alone": MULTIPLIERS | {"use_post_norm": False},
        },
        MULTIPLIERS | {"head_dim": 8},
        MULTIPLIERS,
        "as Granite, with norms on both sides",
        is_rare=True,
    ),
    "InternLM3": Cases(
        "InternLM3 8B",
        {
            "plain": {},
            "biases, tied, dynamic": TIED
            | {"attention_bias": True, "mlp_bias": True, "rope_parameters": ROPE["dynamic"]},
        },
        features="as Llama",
        is_rare=True,
    ),
    "IQuestCoder": Cases(
        "IQuest-Coder V1 40B",
        {"plain": {}, "biases, tied": TIED | {"attention_bias": True, "mlp_bias": True}},
        features="as Llama",
        is_rare=True,
    ),
    "Jais2": Cases(
        "Jais 2 8B, 70B",
        {"plain": UNGIVEN, "no biases, tied": TIED | {"attention_bias": False, "mlp_bias": False}},
        {"head_dim": 8},
        features="norms of mean and variance, biases, an MLP of squared relu without gates",
        is_rare=True,
    ),
    "NanoChat": Cases(
        "nanochat d20, d32",
        {
            "plain": UNGIVEN,
            "biases, tied, no cap": TIED | UNGIVEN | {"attention_bias": True, "final_logit_softcapping": None},
        },
        {"final_logit_softcapping": 2.0},
        UNGIVEN,
        "norms without weights, also on heads and behind the embedding; an MLP of squared relu without gates; capped "
        "logits",
        is_rare=True,
    ),
    "Phimoe": Cases(
        "Phi-3.5-MoE",
        {
            "plain": UNGIVEN | {"num_local_experts": 5, "router_jitter_noise": 0.2},
            "longrope, window, biases, tied": TIED
            | UNGIVEN
            | {"num_local_experts": 4, "sliding_window": 20, "attention_bias": True, "lm_head_bias": True}
            | {"rope_parameters": PHIMOE_ROPE, "router_jitter_noise": 0.4},
        },
        {"num_local_experts": 4, "sliding_window": 7, "router_jitter_noise": 0.3},
        UNGIVEN | {"num_local_experts": 4, "sliding_window": 32, "router_jitter_noise": 0.2},
        "experts chosen one after the other (sparsemixer), norms of mean and variance, longrope",
        loss=0.1,
    ),
    "VaultGemma": Cases(
        "VaultGemma 1B",
        {
            "capped": {"sliding_window": 20, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0},
            "one kv head, biases, untied": {"sliding_window": 7, "num_key_value_heads": 1, "attention_bias": True}
            | {"tie_word_embeddings": False},
        },
        {"sliding_window": 7, "head_dim": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
        {"sliding_window": 32, "query_pre_attn_scalar": 1, "attn_logit_softcapping": 2.0, "tie_word_embeddings": False},
        "as Gemma 2, with norms in front alone",
        is_rare=True,
    ),
    "Afmoe": Cases(
        "Trinity Nano, Mini, Large",
        {
            "windows in three of four layers": AFMOE | {"sliding_window": 20, "num_hidden_layers": 5},
            "scaled embeddings, tied, one shared expert": AFMOE
            | TIED
            | IN_SOME_LAYERS
            | {"sliding_window": 7, "mup_enabled": True, "num_shared_experts": 1, "num_dense_layers": 2}
            | {"route_scale": 1.7},
        },
        AFMOE | {"sliding_window": 7, "head_dim": 8, "global_attn_every_n_layers": 2},
        AFMOE | {"sliding_window": 32, "num_hidden_layers": 5},
        "norms on both sides and on heads, an output gate; layers without a window do not rotate; sigmoid router with "
        "correction, shared experts",
        loss=0.1,
        is_rare=True,
    ),
    "HYV3": Cases(
        "Hunyuan 3 (Hy3)",
        {
            "plain": EXAONE_MOE,
            "two shared experts, biases, tied": EXAONE_MOE
            | TIED
            | {"num_shared_experts": 2, "attention_bias": True, "mlp_bias": True, "router_scaling_factor": 1.3}
            | {"mlp_layer_types": ["sparse", "dense", "sparse"]},
        },
        EXAONE_MOE | {"head_dim": 8},
        EXAONE_MOE,
        "head norms; sigmoid router with correction, shared experts",
        loss=0.1,
        is_rare=True,
    ),
    "Mellum": Cases(
        "Mellum 2 12B-A2.5B",
        {
            "windows in some layers": MELLUM,
            "stretched in full layers, a dense layer, biases, tied": MELLUM
            | TIED
            | {"rope_parameters": MELLUM_ROPES, "mlp_layer_types": ["sparse", "dense", "sparse"]}
            | {"attention_bias": True, "norm_topk_prob": False},
        },
        MOE | {"head_dim": 8, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
        MELLUM | {"sliding_window": 32},
        "as Qwen3 MoE, with windows in some layers, and a rope per kind of layer",
        is_rare=True,
    ),
    "Zamba2": Cases(
        "Zamba 2 1.2B, 2.7B, 7B",
        {
            "two blocks": ZAMBA,
            "one block, no rope, no adapters in attention, biases, one group": ZAMBA
            | {"num_mem_blocks": 1, "use_shared_attention_adapter": False, "use_mem_rope": False}
            | {
                "num_key_value_heads": 2,
                "add_bias_linear": True,
                "mamba_ngroups": 1,
                "hidden_act": "gelu_pytorch_tanh",
            },
        },
        ZAMBA | {"num_hidden_layers": 2, "layers_block_type": ["linear_attention", "hybrid"]},
        ZAMBA
        | {"num_hidden_layers": 3, "layers_block_type": ["hybrid", "linear_attention", "hybrid"], "num_mem_blocks": 1},
        "state spaces (Mamba 2) in every layer, before some of them a block of attention and an MLP that they share, "
        "with small matrices of their own",
        loss=0.2,
    ),
    "RecurrentGemma": Cases(
        "RecurrentGemma 2B, 9B",
        {
            "plain": GRIFFIN | {"num_key_value_heads": 1},
            "other sizes, biases, heads turn as a whole, untied": GRIFFIN
            | {"lru_width": 64, "conv1d_width": 3, "attention_bias": True, "logits_soft_cap": 5.0}
            | {"tie_word_embeddings": False, "block_types": ["recurrent", "attention"]}
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}},
        },
        GRIFFIN | {"num_hidden_layers": 2, "block_types": ["recurrent", "attention"], "attention_window_size": 7},
        GRIFFIN | {"attention_window_size": 100, "tie_word_embeddings": False},
        "gated linear units (RG-LRU) in two of three layers, attention with a window in the others; capped logits",
    ),
    "OlmoHybrid": Cases(
        "OLMo Hybrid 7B",
        {
            "plain": OLMO_HYBRID,
            "betas up to 1, rope, biases, tied": OLMO_HYBRID
            | TIED
            | {"linear_allow_neg_eigval": False, "rope_parameters": ROPE["linear"], "attention_bias": True}
            | {"linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 12}
            | {"layer_types": ["full_attention", "linear_attention", "linear_attention"]},
        },
        {"num_key_value_heads": 2, "head_dim": ..., "linear_key_head_dim": 8},
        OLMO_HYBRID,
        "gated delta nets in three of four layers, whose betas reach 2; attention as in OLMo 3, without rope",
        loss=0.1,
        is_rare=True,
    ),
    "KimiLinear": Cases(
        "Kimi Linear 48B-A3B",
        {
            "plain": KIMI,
            "groups, dense layers, biases, tied": KIMI
            | TIED
            | {"n_group": 3, "topk_group": 2, "norm_topk_prob": False, "attention_bias": True, "q_lora_rank": 12}
            | {"layer_types": ["full_attention", "linear_attention", "linear_attention"]}
            | {"mlp_layer_types": ["sparse", "dense", "sparse"], "num_hidden_layers": 3},
        },
        KIMI | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
        KIMI | {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        "delta nets that forget by the element of a key in three of four layers, latent vectors without positions in "
        "the others; sigmoid router with correction and groups, shared experts",
        loss=0.2,
        is_rare=True,
    ),
    "MiniCPM3": Cases(
        "MiniCPM3 4B",
        {
            "plain": DENSE_LATENT | {"dim_model_base": 24, "scale_emb": 2},
            "no factors, queries from hidden states, biases, untied": DENSE_LATENT
            | {"q_lora_rank": None, "scale_depth": None, "dim_model_base": None, "v_head_dim": None, "scale_emb": 1}
            | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
        },
        DENSE_LATENT | {"dim_model_base": 24, "scale_emb": 3},
        DENSE_LATENT | {"dim_model_base": 24, "scale_emb": 2, "tie_word_embeddings": False},
        "latent vectors in the cache, without experts; factors on embedding, residual stream and logits",
        is_rare=True,
    ),
    "Youtu": Cases(
        "Youtu-LLM 2B",
        {
            "plain": DENSE_LATENT,
            "halves turn, biases, untied": DENSE_LATENT
            | {"rope_interleave": False, "attention_bias": True, "tie_word_embeddings": False, "q_lora_rank": None},
        },
        DENSE_LATENT,
        DENSE_LATENT | {"tie_word_embeddings": False},
        "as DeepSeek-V3, without experts",
        is_rare=True,
    ),
    "SmolLM3": Cases(
        "SmolLM3",
        {
            "plain": {"num_hidden_layers": 5},
            "no rope in a layer, untied, biases": NO_ROPE
            | {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
            "windows without rope": NO_ROPE | SWITCHED,
        },
        {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 7},
        NO_ROPE | SWITCHED | {"sliding_window": 32},
        "layers without rope, which may have windows",
    ),
    "Aquila": Cases(
        "AquilaChat 7B, Aquila 2 7B, 34B",
        {"plain": {}, "biases, tied, dynamic": TIED | {"attention_bias": True, "rope_parameters": ROPE["dynamic"]}},
        features="as Llama",
        is_rare=True,
    ),
    "Baichuan": Cases(
        "Baichuan 7B, 13B, Baichuan 2 7B, 13B",
        {
            "plain": BAICHUAN,
            "rows of the head of length 1 (Baichuan 2 7B)": BAICHUAN | {"z_loss_weight": 0, "rms_norm_eps": 1e-3},
            "scores fall with distance (13B)": BAICHUAN | {"z_loss_weight": 0, "model_max_length": 128},
        },
        engine=BAICHUAN | {"z_loss_weight": 0},
        features="as Llama, its queries, keys and values as one tensor; 13B: scores that fall with distance",
        is_rare=True,
    ),
    "BailingMoe": Cases(
        "Ling-lite, Ling-plus, Ling-lite 1.5, Ring-lite",
        {
            "plain": BAILING,
            "a dense layer, none shared, biases, tied": TIED
            | BAILING
            | {"mlp_only_layers": [0], "num_shared_experts": 0, "attention_bias": True, "norm_topk_prob": False},
        },
        engine=BAILING,
        features="experts beside shared ones, softmax router; queries, keys and values as one tensor",
        is_rare=True,
    ),
    "BailingMoeV2": Cases(
        "Ling-mini 2.0, Ling-flash 2.0, Ling-1T, Ring-mini, Ring-flash, Ring-1T",
        {
            "plain": BAILING2,
            "heads turn as a whole, no norms on them, biases, tied": TIED
            | BAILING2
            | {"attention_bias": True, "use_qk_norm": False, "partial_rotary_factor": 1.0, "rotary_dim": 16}
            | {"n_shared_experts": 2, "first_k_dense_replace": 2},
        },
        engine=BAILING2,
        features="as GLM-4.5 with head norms, its matrices of attention as one tensor",
        is_rare=True,
    ),
    "ChatGLM": Cases(
        "ChatGLM2-6B, ChatGLM3-6B, GLM-4-9B (2024, as first released)",
        {
            "plain": {},
            "no biases, one kv head, a larger base": {"attention_bias": False, "num_key_value_heads": 1}
            | partial({"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}}, 0.5),
        },
        features="as GLM, its matrices fused in the checkpoint",
        is_rare=True,
    ),
    "DeciLM": Cases(
        "Llama 3.3 Nemotron Super 49B, Llama 3.1 Nemotron 51B and Ultra 253B, DeciLM 7B",
        {
            "plain": DECILM,
            "a first layer without attention, an empty layer, biases, tied": TIED
            | {
                "attention_bias": True,
                "mlp_bias": True,
                "head_dim": 12,
                "num_hidden_layers": 4,
                "block_configs": [block(None, 3.0), block(4, 2.0), block(None, None), block(1, 9.0)],
            },
            "key heads by layer (DeciLM 7B)": {"num_key_value_heads_per_layer": [4, 1, 2], "head_dim": 12},
        },
        engine=DECILM,
        features="as Llama; layers with own key heads and MLPs, a matrix in place of attention, or without a part",
    ),
    "Exaone": Cases(
        "EXAONE 3.0, 3.5",
        {"plain": {}, "tied, llama3": TIED | {"rope_parameters": ROPE["llama3"], "num_key_value_heads": 1}},
        features="as Llama",
        is_rare=True,
    ),
    "InternLM": Cases(
        "InternLM 7B, 20B",
        {"plain": {"attention_bias": True, "num_key_value_heads": 4}, "no biases, tied": TIED},
        features="as Llama, with biases in attention",
        is_rare=True,
    ),
    "InternLM2": Cases(
        "InternLM2, InternLM2.5 1.8B, 7B, 20B",
        {
            "plain": {},
            "dynamic, biases, one kv head, tied": TIED
            | {"rope_parameters": ROPE["dynamic"], "attention_bias": True, "num_key_value_heads": 1},
        },
        engine={"attention_bias": True},
        features="as Llama, its queries, keys and values as one tensor",
    ),
    "MiMo": Cases(
        "MiMo 7B",
        {"plain": {}, "tied, one kv head": TIED | {"num_key_value_heads": 1}},
        features="as Qwen2",
        is_rare=True,
    ),
    "MiniCPM": Cases(
        "MiniCPM 1B, 2B, MiniCPM4 0.5B, 8B",
        {
            "plain": MINICPM,
            "longrope, one kv head, tied": TIED | MINICPM | MINICPM_LONGROPE | {"num_key_value_heads": 1},
        },
        engine=MINICPM,
        features="as Granite: factors on embedding, residual stream and logits; longrope",
        is_rare=True,
    ),
    "Orion": Cases(
        "Orion 14B",
        {"plain": ORION, "one kv head, tied": TIED | ORION | {"num_key_value_heads": 1}},
        engine=ORION,
        features="as Llama, with norms of mean and variance",
        is_rare=True,
    ),
    "QWen": Cases(
        "Qwen 1.8B, 7B, 14B, 72B (Qwen 1)",
        {"plain": QWEN, "another base, other eps, tied": TIED | QWEN | {"rms_norm_eps": 1e-3} | QWEN_BASE},
        engine=QWEN,
        features="as Qwen2, without groups, its matrices of attention as one tensor; up to the trained length",
        is_rare=True,
    ),
    "Xverse": Cases(
        "XVERSE 7B, 13B, 65B",
        {"plain": {}, "other eps, tied": TIED | {"rms_norm_eps": 1e-3, "num_key_value_heads": 4}},
        features="as Llama",
        is_rare=True,
    ),
}

BY_RARITY = [
    pytest.param(family, marks=pytest.mark.slow if cases.is_rare else (), id=family) for family, cases in CASES.items()
]
"""The families, as parameters of a test."""
WITH_CLASS = [param for param in BY_RARITY if param.id not in RENAMED]
"""Those that transformers has a class for."""


def variants(of_common: int | None, of_rare: int) -> list[Any]:
    """Variants as parameters (family, name, options) of a test: so many of a family, the last among them, or all.

    The others are slow. A family's last variant has most of what it may leave out.
    """
    params = []
    for family, cases in CASES.items():
        names, most = list(cases.variants), of_rare if cases.is_rare else of_common
        kept = names if most is None else [*names[: most - 1], names[-1]] if most > 1 else names[:1]
        for name, options in cases.variants.items():
            marks = () if name in kept else pytest.mark.slow
            params.append(pytest.param(family, name, options, marks=marks, id=f"{family} {name}"))
    return params
