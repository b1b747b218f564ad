"""The allowed keys of an architecture's `config.json`: no key that changes the arithmetic is ignored without a warning.

A key is read, or fixed to its one implemented value, or known to change nothing. Keys of other families that change the
arithmetic there are refused, unless their value means "none". Other keys are unknown; a warning names them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lullm.config.family.family import Family
from lullm.config.field import Data, shown
from lullm.errors import FamilyLimitError

COMMON_READS = frozenset(
    {
        "architectures", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings", "dtype", "torch_dtype",
        "eos_token_id", "bos_token_id", "quantization_config", "text_config", "layer_types",
    }
)  # fmt: skip

COMMON_FIXED: Mapping[str, Any] = {
    "is_causal": True, "is_encoder_decoder": False, "add_cross_attention": False, "per_layer_config": None,
    "partial_rotary_factor": 1.0, "rope_interleaved": False,
}  # fmt: skip

COMMON_IGNORES = frozenset(
    {
        "model_type", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "auto_map",
        "tokenizer_class", "use_cache", "return_dict", "output_hidden_states", "output_attentions",
        "initializer_range", "pad_token_id", "sep_token_id", "decoder_start_token_id", "attention_dropout",
        "attention_probs_dropout_prob", "hidden_dropout_prob",
        "chunk_size_feed_forward", "id2label", "label2id", "num_labels", "problem_type", "pretraining_tp",
        "tie_last_hidden_states", "is_decoder", "task_specific_params", "finetuning_task", "torchscript",
        "use_bfloat16",
        "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "experts_implementation",
        "gradient_checkpointing", "unsloth_fixed", "unsloth_version", "is_llama_config", "transformers.js_config",
        "_num_labels", "_from_model_config", "init_method",
        # of the tokenizer; `max_position_embeddings` bounds a sequence
        "max_sequence_length", "model_max_length",
        # of what pools; `config.pooling.use` reads them
        "sentence_transformers", "sbert_ce_default_activation_function", "is_matryoshka", "matryoshka_dimensions",
        # generation defaults of older files; generation_config.json has them
        "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "temperature",
        "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "bad_words_ids",
        "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id",
        "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
        "begin_suppress_tokens", "diversity_penalty", "encoder_no_repeat_ngram_size", "pruned_heads", "prefix",
    }
)  # fmt: skip

ARITHMETIC = frozenset(
    {
        "llama_4_scaling", "no_rope_layers", "attention_multiplier", "logit_scale", "logits_scale",
        "attention_chunk_size", "attn_temperature_tuning", "use_qk_norm", "qk_layernorm", "use_parallel_residual",
        "parallel_attn", "alibi", "rotary_pct", "rope_interleave", "rope_local_base_freq", "clip_qkv", "use_mrope",
        "query_pre_attn_scalar", "attention_sink", "sliding_window_size", "kv_lora_rank", "q_lora_rank", "scale_emb",
        "scale_depth", "dim_model_base", "mup_enabled", "attention_value_scale", "use_gated_attention",
        "attn_output_gate", "num_kv_shared_layers", "hidden_size_per_layer_input", "add_bos_norm",
        "linear_num_value_heads", "mamba_d_state", "use_bidirectional_attention", "attention_out_bias",
        "attention_in_bias", "use_bias", "qkv_bias",
    }
)  # fmt: skip
"""Keys that change the arithmetic of families that lullm lacks; those of its own are added by `check_keys`."""


def _says_none(value: Any) -> bool:
    """Whether the value is a switch that is off, a factor of 1, or empty."""
    return value is not True and value in (None, False, 0, 1.0, [], {}, "")


def check_keys(data: Data, architecture: str, family: Family, others: Iterable[Family]) -> tuple[str, ...]:
    """The unknown keys of a file, sorted.

    Raises:
        FamilyLimitError: a key changes the arithmetic, and this architecture does not implement its value. All such
            keys are named.
    """
    fixed = {**COMMON_FIXED, **family.fixed}
    reads = COMMON_READS | family.reads | family.defaults.keys() | family.aliases.keys()
    known = (COMMON_IGNORES | family.ignores) - family.reads
    wrong: dict[str, str] = {}
    unknown = []
    foreign = ARITHMETIC | _arithmetic_of(others)
    for key, value in data.items():
        if key in known or key in reads:
            continue
        if key in fixed:
            if value is not None and value != fixed[key]:
                wrong[key] = f"{key} {shown(value)} (only {shown(fixed[key])} is)"
        elif key in foreign:
            if not _says_none(value):
                wrong[key] = f"{key} {shown(value)}"
        else:
            unknown.append(key)
    if wrong:
        raise FamilyLimitError(
            f"config.json: {', '.join(wrong.values())}: not implemented for {architecture}, and it changes what the "
            "model computes; take a checkpoint without it, or remove the key if it means nothing there",
            tuple(wrong),
        )
    return tuple(sorted(unknown))


def _arithmetic_of(families: Iterable[Family]) -> frozenset[str]:
    keys: frozenset[str] = frozenset()
    for family in families:
        keys |= family.reads | family.fixed.keys()
    return keys - COMMON_IGNORES
