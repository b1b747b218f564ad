"""Nothing wrong in silence: every key of transformers' config classes is computed as there, or refused by its name.

A key is changed in a file that holds little else, so what a missing key means is compared as well. That keys in
`ignores` change nothing follows: lullm does not read them, and still computes what transformers computes with them.
"""

import dataclasses

import pytest
from kit.model.families import CASES, WITH_CLASS
from kit.model.golden import (
    PagedRun,
    architecture_of,
    assert_close,
    golden_logits,
    load_model,
    model_class,
    prompt,
    random_model,
    save,
    write_config,
)

from lullm.config.family.keys import ARITHMETIC, COMMON_FIXED, COMMON_IGNORES, COMMON_READS
from lullm.config.family.table import FAMILIES
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.models.registry import builder_of
from lullm.ops.selection import TORCH_CPU_OPS

SIZES = {
    "vocab_size": 53, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 1,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0, "original_max_position_embeddings": 16}
CHANGES = {
    "vocab_size": [61],
    "hidden_size": [32],
    "intermediate_size": [24],
    "num_hidden_layers": [3],
    "num_attention_heads": [2],
    "num_key_value_heads": [4, None],
    "head_dim": [16],
    "hidden_act": ["gelu", "relu", "tanh"],
    "hidden_activation": ["gelu", "silu", "tanh"],
    "max_position_embeddings": [32],
    "rms_norm_eps": [0.1],
    "rope_parameters": [
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0},
        YARN,
        {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
        },
    ],
    "rope_scaling": [{"type": "linear", "rope_type": "linear", "factor": 3.0}],
    "pad_token_id": [3],
    "rope_theta": [70.0],
    "partial_rotary_factor": [0.5],
    "sliding_window": [5, None],
    "attention_chunk_size": [5],
    "moe_layers": [[0]],
    "layer_rope_theta": [[30.0, 300.0], [0, 100.0]],
    "router_jitter_noise": [0.6],
    "moe_topk": [1, 3],
    "num_shared_experts": [1],
    "num_dense_layers": [0, 2],
    "global_attn_every_n_layers": [1, 3],
    "scale_depth": [0.7],
    "classifier_activation": ["silu"],
    "gating": ["per-element", False],
    "num_attention_heads_per_layer": [[2, 4], [2], [3, 4], None],
    "shared_expert_combination_strategy": ["sum", "max"],
    "expert_selection_fn": ["softmax", "tanh"],
    "initializer_range": [0.03],
    "embedding_initializer_range": [0.03],
    "max_window_layers": [0, 2],
    "layer_types": [["sliding_attention", "full_attention"], ["full_attention"] * 2, ["sliding_attention"] * 2]
    + [["chunked_attention", "full_attention"]]
    + [["full_attention", "sliding_attention"] * 2, ["full_attention"] * 2 + ["sliding_attention", "full_attention"]],
    "query_pre_attn_scalar": [3],
    "final_logit_softcapping": [1.5, None],
    "attn_logit_softcapping": [1.0, None],
    "sliding_window_pattern": [1, 2],
    "is_causal": [False],
    "num_experts": [3],
    "num_local_experts": [3],
    "n_routed_experts": [9],
    "num_experts_per_tok": [1, 3],
    "moe_intermediate_size": [16],
    "shared_expert_intermediate_size": [16],
    "decoder_sparse_step": [2],
    "mlp_only_layers": [[0]],
    "n_embd": [32],
    "n_layer": [3],
    "n_head": [2],
    "n_positions": [32],
    "moe_num_experts": [3],
    "moe_k": [1, 3],
    "moe_num_shared_experts": [0, 1],
    "moe_layer_start_index": [0],
    "moe_layer_end_index": [0],
    "moe_layer_interval": [2],
    "moe_norm_min": [0.9],
    "shared_intermediate_size": [16, 0],
    "n_inner": [24, None],
    "num_kv_heads": [4, None],
    "num_ln_in_parallel_attn": [1, 2],
    "ffn_hidden_size": [24, None],
    "activation": ["relu", "tanh"],
    "rotary_dim": [4],
    "activation_function": ["gelu", "relu", "tanh"],
    "summary_type": ["mean"],
    "afn": ["relu", "silu", "tanh"],
    "num_layers": [3],
    "num_heads": [2],
    "window_size": [5],
    "attention_types": [[[["local"], 2]], [[["global"], 3]], [[["other"], 2]], None],
    "attention_layers": [["local", "local"]],
    "summary_activation": ["tanh"],
    "ffn_dim": [24],
    "word_embed_proj_dim": [16],
    "n_group": [1],
    "topk_group": [1],
    "first_k_dense_replace": [0, 2],
    "n_shared_experts": [2],
    "clip_qkv": [0.1],
    "no_rope_layers": [[1, 1], [0, 1], [1, 0]],
    "no_rope_layer_interval": [1, 3],
    "original_max_position_embeddings": [8],
    "kv_lora_rank": [16],
    "q_lora_rank": [8, None],
    "qk_nope_head_dim": [6],
    "qk_rope_head_dim": [4],
    "v_head_dim": [10],
    "topk_method": ["greedy", "best"],
    "mlp_layer_types": [["sparse", "sparse"], ["sparse", "dense"]],
    "time_step_limit": [[0.4, 0.6]],
    "time_step_min": [0.6],
    "d_model": [32],
    "n_layers": [3],
    "n_heads": [2],
    "max_seq_len": [32],
    "attn_config": [{"clip_qkv": 0.1}, {"softmax_scale": 0.5}, {"attn_impl": "eager"}],
    "init_device": ["meta"],
    "norm_type": ["layernorm"],
    "logit_scale": [0.5],
    "time_step_rank": [5],
    "mamba_dt_rank": [5],
    "attn_layer_offset": [0, 9],
    "expert_layer_offset": [0],
    "time_step_init_scheme": ["constant"],
    "mamba_ssm_cache_dtype": ["bfloat16"],
    "moe_latent_size": [16],
    "mtp_layers_block_type": [["linear_attention"]],
    "ssm_multipliers": [[0.5, 1.5, 0.7, 1.2, 0.6]],
    "mlp_multipliers": [[0.5, 1.5]],
    "mamba_d_head": [8, "auto"],
    "mamba_d_ssm": [48, None],
    "mamba_n_heads": [3],
    "mamba_n_groups": [1],
    "mamba_num_heads": [4],
    "mamba_head_dim": [6],
    "mamba_hidden_act": ["gelu"],
    "mlp_hidden_act": ["relu", "silu", "tanh"],
    "n_groups": [1],
    "attn_layer_indices": [[0], None],
    "position_embedding_type": ["rope", "learned"],
    "full_attn_idxs": [[0]],
    "layers_block_type": [["full_attention"], ["linear_attention", "full_attention"], ["linear_attention", "moe"]],
    "hybrid_override_pattern": ["M*-"],
    "dtype": ["bfloat16"],
    "problem_type": ["regression"],
    "id2label": [{"0": "a"}],
    "label2id": [{"a": 0}],
    "num_mtp_layers": [1],
    "block_types": [["attention"], ["attention", "recurrent"], ["mamba"]],
    "lru_width": [64],
    "conv1d_width": [3],
    "mtp_layer_types": [["sliding_attention"]],
    "mtp_mlp_layer_types": [["sparse"]],
    "per_layer_config": [
        {"1": {"rms_norm_eps": 0.5}},
        {"1": {"head_dim": 16}},
        {"1": {"head_dim": 16, "num_key_value_heads": 1}, "3": {"head_dim": 16, "num_key_value_heads": 1}},
        {"4": {"head_dim": 16}},
    ],
    "global_head_dim": [16, 7],
    "num_global_key_value_heads": [1, 3],
    "num_kv_shared_layers": [0, 2, 3],
    "use_double_wide_mlp": [True],
    "altup_active_idx": [1, 9],
    "altup_num_inputs": [2],
    "altup_coef_clip": [0.01],
    "activation_sparsity_pattern": [None, [0.5, 0.5, 0.0, 0.0], [0.5]],
    "laurel_rank": [6],
    "attention_k_eq_v": [False],
    "hidden_size_per_layer_input": [4, 0],
    "vocab_size_per_layer_input": [70],
    "enable_moe_block": [False],
    "top_k_experts": [1, 6],
    "use_bidirectional_attention": ["all", "vision", True],
    "transformers_version": ["4.0"],
    "architectures": [],  # says which family it is
    "return_dict": [],  # transformers fails with false
    "use_sliding_window": [True, False],
}
"""Other values by key; those of switches and numbers without an entry follow from their defaults."""
EXTRA = (
    "head_dim", "rope_theta", "rope_scaling", "partial_rotary_factor", "is_causal", "per_layer_config",
    "global_head_dim", "num_global_key_value_heads",
    "sliding_window_pattern", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
)  # fmt: skip
"""Keys that are no fields of every class, and that files have all the same."""


def fields_of(family):
    names = [field.name for field in dataclasses.fields(model_class(family).config_class)]
    return [name for name in dict.fromkeys((*names, *EXTRA)) if not name.startswith("_")]


def default_of(family, key):
    fields = {field.name: field for field in dataclasses.fields(model_class(family).config_class)}
    return fields[key].default if key in fields else None


def changes_of(family, key):
    if (family, key) == ("Apertus", "dtype"):
        return []  # transformers rounds what its activation has learned to it, in a model of float32, too
    if key in CHANGES:
        return CHANGES[key]
    default = default_of(family, key)
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [default + 1]
    if isinstance(default, float):
        return [default * 1.5 or 0.3]
    if default is None:
        return [3] if key.endswith("token_id") else [True]
    raise AssertionError(f"{key} of {family} needs values in CHANGES")


def base_of(family):
    base = SIZES | CASES[family].keys_base
    return {key: value for key, value in base.items() if value is not ...}


def theirs_of(family, options, token_ids):
    """transformers' model; None: it refuses these keys, or fails with them."""
    try:
        model = random_model(family, options)
        return model, golden_logits(model, token_ids)
    except Exception:  # noqa: BLE001 - whatever a config of nonsense runs into
        return None


def assert_same_or_refused(folder, family, options, keys, token_ids):
    """Whether it was computed. `keys` is what a refusal must name one of."""
    write_config(folder, family, options)
    try:
        ModelConfig.from_folder(folder)
    except ModelLoadError as error:
        assert any(key in str(error) for key in keys), f"the refusal names none of {keys}: {error}"
        return False
    theirs = theirs_of(family, options, token_ids)
    if theirs is None:
        return False  # lullm may know what transformers does not
    save(theirs[0], folder)
    write_config(folder, family, options)
    model = load_model(folder, max_model_len=len(token_ids))
    if not model.config.generates:
        return True  # a decoder without its mask, compared in `engine/test_text_embedder.py`
    assert_close(PagedRun(model, TORCH_CPU_OPS, 1).step([(0, token_ids)]), theirs[1])
    return True


PLAIN = {"vocab_size", "intermediate_size", "moe_intermediate_size", "rms_norm_eps", "initializer_range", "dtype"}
"""Keys of `CHANGES` whose new values leave others their meaning, as those of switches, factors and token ids do."""
AT_ONCE = 6


def is_plain(family, key):
    return (
        key in PLAIN
        or key.endswith("token_id")
        or (key not in CHANGES and type(default_of(family, key)) in (bool, float))
    )


def compare_together(tmp_path, family, base, changes, token_ids):
    """Compare models in which several keys are changed; those keys that no comparison has met."""
    accepted, left = {}, []
    for key, value in changes.items():
        write_config(tmp_path, family, base | {key: value})
        try:
            ModelConfig.from_folder(tmp_path)
            accepted[key] = value
        except ModelLoadError:
            left.append(key)  # refused alone, by its name
    keys = list(accepted)
    for first in range(0, len(keys), AT_ONCE):
        some = keys[first : first + AT_ONCE]
        folder = tmp_path / f"together-{first}"
        folder.mkdir()
        options = base | {key: accepted[key] for key in some}
        try:
            is_compared = assert_same_or_refused(folder, family, options, some, token_ids)
        except Exception as error:
            error.add_note(f"{family} with { ({key: accepted[key] for key in some}) }")
            raise
        left += [] if is_compared else some
    return left


@pytest.mark.parametrize("family", WITH_CLASS)
def test_every_key_is_computed_or_refused(tmp_path, family):
    token_ids = [token_id % 50 for token_id in prompt(1, 20)]
    base = base_of(family)
    expected = golden_logits(random_model(family, base), token_ids)
    assert expected.std() > 0.3, "otherwise 1e-4 would prove little"
    declared = FAMILIES[architecture_of(family)]
    ignored = (COMMON_IGNORES | declared.ignores) - declared.reads
    known = ignored | COMMON_READS | COMMON_FIXED.keys() | declared.reads | declared.fixed.keys() | ARITHMETIC
    known |= declared.defaults.keys() | declared.aliases.keys() | set(EXTRA)
    in_vain, together, alone = {}, {}, []
    for key in fields_of(family):
        assert key in known, f"{key} of {family} is declared nowhere"
        values = changes_of(family, key)
        if key in ignored:
            in_vain |= {key: values[-1]} if values else {}
        elif len(values) == 1 and is_plain(family, key):
            together[key] = values[0]
        else:
            alone += [(key, value) for value in values]
    alone += [(key, together[key]) for key in compare_together(tmp_path, family, base, together, token_ids)]
    for number, (key, value) in enumerate(alone):
        folder = tmp_path / f"{key}-{number}"
        folder.mkdir()
        assert_same_or_refused(folder, family, base | {key: value}, [key], token_ids)
    assert assert_same_or_refused(tmp_path, family, base | in_vain, [], token_ids), "what is ignored is not refused"
    assert_close(golden_logits(random_model(family, base | in_vain), token_ids), expected)


def test_the_families_are_those_that_are_built_and_walked():
    assert sorted(FAMILIES) == sorted(architecture_of(family) for family in CASES)
    assert all(callable(builder_of(architecture)) for architecture in FAMILIES)


@pytest.mark.parametrize("family", [param.id for param in WITH_CLASS])
def test_defaults_are_those_of_transformers(family):
    config_class = model_class(family).config_class
    for key, value in FAMILIES[architecture_of(family)].defaults.items():
        theirs = config_class.default_theta if key == "rope_theta" else default_of(family, key)
        assert theirs == value, key


ROPES = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16
    },
    "yarn": {
        "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8.0, "beta_slow": 1.0,
        "attention_factor": None, "mscale": None, "mscale_all_dim": None, "truncate": True,
    },
}  # fmt: skip
ROPE_CHANGES = {
    "rope_theta": 50.0, "factor": 3.0, "low_freq_factor": 2.0, "high_freq_factor": 8.0, "beta_fast": 4.0,
    "beta_slow": 0.5, "attention_factor": 1.3, "mscale": 0.7, "mscale_all_dim": 0.9, "truncate": False,
    "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.5,
    "mrope_section": [1, 2], "finetuned": True, "some_key_of_tomorrow": 3,
}  # fmt: skip


@pytest.mark.parametrize("rope_type", ["default", *ROPES])
@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
def test_every_rope_parameter_is_computed_or_refused(tmp_path, rope_type, spelling):
    token_ids = [token_id % 50 for token_id in prompt(1, 30)]
    base = {"rope_type": rope_type, "rope_theta": 100.0, **ROPES.get(rope_type, {})}
    computed = set()
    for key, value in [("rope_type", rope_type), *ROPE_CHANGES.items()]:
        changed = {spelling: base | {key: value}}
        folder = tmp_path / key
        folder.mkdir()
        if assert_same_or_refused(folder, "Llama", base_of("Llama") | changed, [key], token_ids):
            computed.add(key)
    assert computed >= base.keys() | {"finetuned"}
    assert not computed & {"some_key_of_tomorrow", "llama_4_scaling_beta", "partial_rotary_factor", "mrope_section"}


LLAMA = SIZES | {"architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize("key", sorted(ARITHMETIC) + ["attn_logit_softcapping"])
def test_arithmetic_of_other_families_is_refused(key):
    with pytest.raises(ModelLoadError, match=f"{key} 7.*LlamaForCausalLM"):
        ModelConfig.from_dict(LLAMA | {key: 7})
    with pytest.raises(ModelLoadError, match=key):
        ModelConfig.from_dict(LLAMA | {key: True})
    for none in (None, False, 1.0, []):
        assert ModelConfig.from_dict(LLAMA | {key: none}).unknown_keys == ()


def test_all_refused_keys_are_named_at_once():
    with pytest.raises(
        ModelLoadError, match="add_cross_attention True .only False is., llama_4_scaling .*: not implemented"
    ):
        ModelConfig.from_dict(LLAMA | {"add_cross_attention": True, "llama_4_scaling": {"beta": 0.1}})


def test_unknown_keys_are_named_in_a_warning(tmp_path, caplog):
    write_config(tmp_path, "Llama", SIZES | {"use_cache": True, "some_key_of_tomorrow": 1, "_a_note": "x"})
    caplog.set_level("WARNING", "lullm")
    ModelConfig.from_folder(tmp_path)
    assert "_a_note, some_key_of_tomorrow" in caplog.text and "use_cache" not in caplog.text
