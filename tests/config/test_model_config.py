"""ModelConfig and GenerationDefaults: both spellings of the JSON files, and their faults."""

import json

import pytest

from lullm.config.engine import EngineConfig
from lullm.config.generation import GenerationDefaults, left_open
from lullm.config.model import ModelConfig
from lullm.errors import ConfigError, ModelLoadError
from lullm.types.layer_kind import FullAttention, RecurrentState, SlidingWindow

PLAIN = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": [1, 2],
    "some_key_of_tomorrow": True,
}


MISTRAL = {"architectures": ["MistralForCausalLM"], "sliding_window": 32}
QWEN = {"architectures": ["Qwen3ForCausalLM"], "sliding_window": 32, "use_sliding_window": True}


KV_SCHEME = {
    "quant_method": "compressed-tensors",
    "config_groups": {},
    "kv_cache_scheme": {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True, "dynamic": False},
}


def test_scales_for_the_kv_cache_alone_make_no_quantized_checkpoint():
    plain = ModelConfig.from_dict(PLAIN)
    assert ModelConfig.from_dict(PLAIN | {"quantization_config": KV_SCHEME}) == plain


def test_both_spellings_of_rope():
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}
    assert ModelConfig.from_dict(PLAIN | old) == ModelConfig.from_dict(PLAIN | new)


def test_defaults_and_lists():
    config = ModelConfig.from_dict(PLAIN)
    assert (config.head_dim, config.num_key_value_heads, config.dtype) == (2, 2, "float32")
    assert config.eos_token_ids == (1, 2)
    assert ModelConfig.from_dict(PLAIN | {"dtype": "float16"}).dtype == "float16"


@pytest.mark.parametrize(
    ("change", "window"),
    [
        ({}, None),
        ({"sliding_window": 32}, None),  # a Llama has none
        (MISTRAL, 32),
        ({**MISTRAL, "sliding_window": None}, None),
        ({"architectures": ["MistralForCausalLM"]}, 4096),
        ({**QWEN, "use_sliding_window": False}, None),
        ({**QWEN, "max_window_layers": 0}, 32),
        (QWEN, None),  # from layer 28 on, and there is one layer
        ({**QWEN, "layer_types": ["sliding_attention"]}, 32),
        ({**QWEN, "layer_types": ["full_attention"], "max_window_layers": 0}, None),
    ],
)
def test_sliding_window(change, window):
    config = ModelConfig.from_dict(PLAIN | change)
    assert config.layer_kinds == (FullAttention() if window is None else SlidingWindow(window),)


def test_windows_in_some_layers():
    """The first layers of a Qwen may have full attention, and a list may say it layer by layer."""
    three = {"num_hidden_layers": 3}
    kinds = ModelConfig.from_dict(PLAIN | QWEN | three | {"max_window_layers": 1}).layer_kinds
    assert kinds == (FullAttention(), SlidingWindow(32), SlidingWindow(32))
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    mixed = ModelConfig.from_dict(PLAIN | QWEN | three | {"layer_types": types})
    assert mixed.layer_kinds == (SlidingWindow(32), FullAttention(), SlidingWindow(32))


GEMMA = {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 7, "sliding_window": 16, "head_dim": 4}


def test_gemma():
    config = ModelConfig.from_dict(PLAIN | GEMMA | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert config.layer_kinds == (SlidingWindow(16),) * 5 + (FullAttention(), SlidingWindow(16))
    local, full = config.family.ropes[4:6]
    assert (local.rope_theta, local.rope_type) == (1e4, "default")
    assert (full.rope_theta, full.rope_type, full.factor) == (1e6, "linear", 8.0)
    assert config.tie_word_embeddings and config.family.activation == "gelu_tanh"
    assert config.family.attention_scale == 256**-0.5 and config.family.embedding_scale == 8**0.5
    ropes = {"full_attention": {"rope_theta": 5.0}, "sliding_attention": {"rope_theta": 3.0}}
    new = ModelConfig.from_dict(PLAIN | GEMMA | {"rope_parameters": ropes, "sliding_window_pattern": 2})
    assert new.layer_kinds[:3] == (SlidingWindow(16), FullAttention(), SlidingWindow(16))
    assert [rope.rope_theta for rope in new.family.ropes[:2]] == [3.0, 5.0]
    assert ModelConfig.from_dict(PLAIN | {**GEMMA, "head_dim": None}).head_dim == 256


def test_gemma_2():
    """Every second layer has a window; scores and logits are capped unless the file says null."""
    data = PLAIN | GEMMA | {"architectures": ["Gemma2ForCausalLM"]}
    config = ModelConfig.from_dict(data)
    assert config.layer_kinds[:3] == (SlidingWindow(16), FullAttention(), SlidingWindow(16))
    assert (config.family.attention_soft_cap, config.family.final_soft_cap) == (50.0, 30.0)
    assert config.family.attention_features == {"soft_cap"}
    assert {rope.rope_theta for rope in config.family.ropes} == {1e4}
    family = ModelConfig.from_dict(data | {"attn_logit_softcapping": None, "final_logit_softcapping": None}).family
    assert (family.attention_soft_cap, family.final_soft_cap) == (None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": []}, "architecture"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_hidden_layers": ..., "text_config": {"num_hidden_layers": 1}}, "reads more than text"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"head_dim": 5}, "even"),
        ({"rope_scaling": {"type": "magic"}}, "rope_type"),
        ({"torch_dtype": "int3"}, "dtype"),
        ({"hidden_act": "mish"}, "hidden_act"),
        ({**MISTRAL, "sliding_window": "x"}, "sliding_window"),
        ({**QWEN, "layer_types": ["full_attention", "sliding_attention"]}, "names 2 layers, num_hidden_layers is 1"),
        ({**QWEN, "layer_types": ["chunked_attention"]}, "full_attention and sliding_attention"),
        ({**GEMMA, "hidden_activation": "mish"}, "hidden_activation"),
        ({**GEMMA, "attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({**GEMMA, "use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({**GEMMA, "rope_parameters": {"rope_theta": 1e4}}, "full_attention and sliding_attention"),
        ({**GEMMA, "sliding_window_pattern": "x"}, "sliding_window_pattern"),
        ({**QWEN, "max_window_layers": "x"}, "max_window_layers"),
        ({**QWEN, "layer_types": 3}, "layer_types"),
        ({"quantization_config": {"bits": 4}}, "quant_method must name"),
        (
            {"quantization_config": KV_SCHEME | {"config_groups": {"group_0": {"weights": {"num_bits": 8}}}}},
            "format is None",
        ),
        ({"quantization_config": KV_SCHEME | {"kv_cache_scheme": {"type": "int", "num_bits": 8}}}, "kv_cache_scheme"),
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"eos_token_id": -1}, "eos_token_id"),
        ({"bos_token_id": "0"}, "bos_token_id"),
        ({"vocab_size": 10**30}, "vocab_size must be a positive integer up to"),
        ({"num_hidden_layers": 10**5}, "num_hidden_layers"),
        ({**GEMMA, "num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({**GEMMA, "sliding_window_pattern": 10**9}, "sliding_window_pattern"),
        ({"max_position_embeddings": 10**9}, "max_position_embeddings"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"rope_theta": 1.0}, "rope_theta"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-300}}, "factor"),
        ({"rope_scaling": "none"}, "rope_scaling must be an object"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor"),
        ({**GEMMA, "rope_local_base_freq": 10**400}, "rope_local_base_freq"),
        ({**GEMMA, "rope_parameters": {"full_attention": 7}}, "full_attention must be an object"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, not 'no'"),
        ({"attention_bias": "false"}, "attention_bias"),
        ({"mlp_bias": 1}, "mlp_bias"),
        ({**QWEN, "use_sliding_window": "no"}, "use_sliding_window"),
        ({**QWEN, "max_window_layers": True}, "max_window_layers"),
    ],
)
def test_faults_are_named(change, message):
    data = {name: value for name, value in (PLAIN | change).items() if value is not ...}
    with pytest.raises(ModelLoadError, match=message):
        ModelConfig.from_dict(data)


MAMBA = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_expand": 2}
GRANITE_HYBRID = {"architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["attention"], **MAMBA}
LFM2 = {"architectures": ["Lfm2ForCausalLM"], "layer_types": ["full_attention"], "block_auto_adjust_ff_dim": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({**GRANITE_HYBRID, "layer_types": ["lstm"]}, "layers_block_type"),
        ({**GRANITE_HYBRID, "mamba_expand": 10**9}, "mamba_expand"),
        ({**GRANITE_HYBRID, "time_step_limit": [0, 10**400]}, "time_step_limit"),
        ({**GRANITE_HYBRID, "shared_intermediate_size": 10**9}, "shared_intermediate_size"),
        ({**LFM2, "block_ffn_dim_multiplier": 1e30}, "block_ffn_dim_multiplier"),
        ({**LFM2, "block_multiple_of": 10**9}, "block_multiple_of"),
    ],
)
def test_faults_of_hybrids_are_named(change, message):
    """They ended in an empty maximum, in an overflow, or with a key's name that the file does not have."""
    with pytest.raises(ModelLoadError, match=message):
        ModelConfig.from_dict(PLAIN | change)


@pytest.mark.parametrize(
    "change",
    [
        {**GRANITE_HYBRID, "layer_types": ["mamba"]},
        {"architectures": ["BambaForCausalLM"], "attn_layer_indices": None, **MAMBA},
        {**LFM2, "layer_types": None, "full_attn_idxs": []},
    ],
    ids=lambda change: change["architectures"][0],
)
def test_a_hybrid_may_have_no_attention(change):
    config = ModelConfig.from_dict(PLAIN | change)
    assert not config.has_attention and all(isinstance(kind, RecurrentState) for kind in config.layer_kinds)


def test_bamba_turns_half_of_a_head_unless_a_file_says_otherwise():
    """transformers 5.17 writes the share at the top, where it was refused; others write none, or in rope_parameters."""
    bamba = PLAIN | {"architectures": ["BambaForCausalLM"], "attn_layer_indices": [0], **MAMBA}
    silent, half, quarter = (
        ModelConfig.from_dict(bamba | change)
        for change in ({}, {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.25})
    )
    assert silent.family == half.family != quarter.family


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": 262_208, "hidden_size": 16_384, "num_attention_heads": 128, "intermediate_size": 53_248},
        {"num_hidden_layers": 128, "head_dim": 512},
        {"max_position_embeddings": 10_485_760, "rope_theta": 1e11},
        {"rope_scaling": {"rope_type": "yarn", "factor": 64.0, "beta_fast": 32, "beta_slow": 1, "truncate": False}},
        {"tie_word_embeddings": None, "attention_bias": None, "bos_token_id": None, "rope_scaling": None},
        {"bos_token_id": 50_000},  # of an extended tokenizer, above the vocabulary
    ],
)
def test_what_real_checkpoints_have(change):
    assert ModelConfig.from_dict(PLAIN | change)


def test_faults_of_the_file(tmp_path):
    with pytest.raises(ModelLoadError, match="no config.json"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="JSON"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match="object"):
        ModelConfig.from_folder(tmp_path)


def test_generation_defaults(tmp_path):
    assert GenerationDefaults.from_folder(tmp_path).params.temperature == 1.0
    assert GenerationDefaults.from_folder(tmp_path).stated == frozenset()
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"temperature": 0.6, "top_k": 20, "eos_token_id": 7, "max_new_tokens": 9}))
    defaults = GenerationDefaults.from_folder(tmp_path)
    assert (defaults.params.temperature, defaults.params.top_k, defaults.params.max_tokens) == (0.6, 20, 9)
    assert defaults.eos_token_ids == (7,) and defaults.stated == {"temperature", "top_k", "max_tokens"}
    assert left_open({"temperature": 0.8, "top_p": 0.9}, defaults.stated) == {"top_p": 0.9}
    path.write_text(json.dumps({"do_sample": False, "temperature": 0.6}))
    assert GenerationDefaults.from_folder(tmp_path).params.is_greedy
    for broken in ('{"eos_token_id": -1}', "{", "[]", '{"eos_token_id": "x"}'):
        path.write_text(broken)
        with pytest.raises(ModelLoadError, match="generation_config"):
            GenerationDefaults.from_folder(tmp_path)


def test_generation_defaults_of_ones_own(tmp_path):
    """vLLM's options, which were refused."""
    model, other = tmp_path / "model", tmp_path / "other"
    for folder, temperature in ((model, 0.6), (other, 0.3)):
        folder.mkdir()
        (folder / "generation_config.json").write_text(json.dumps({"temperature": temperature, "eos_token_id": 7}))
    (tmp_path / "empty").mkdir()
    for source, override, expected in [
        ("auto", None, 0.6),
        ("vllm", None, 1.0),
        (str(other), None, 0.3),
        ("auto", '{"temperature": 0.1, "max_new_tokens": 5}', 0.1),
        ("vllm", '{"max_new_tokens": 5}', 1.0),
    ]:
        defaults = GenerationDefaults.from_folder(model, source, override)
        assert defaults.params.temperature == expected
        assert defaults.params.max_tokens == (5 if override else 16)
        assert defaults.eos_token_ids == (7,), "what ends a text is the model's"
        assert ("min_p" in defaults.stated, "max_tokens" in defaults.stated) == (source == "vllm", override is not None)
    with pytest.raises(ModelLoadError, match="generation_config: there is no .*empty"):
        GenerationDefaults.from_folder(model, str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("given", "words"),
    [("{", "is not JSON: Expecting"), ("[]", "must be a JSON object"), ('{"top_q": 1}', "has some of .*, not top_q"),
     ('{"temperature": -1}', "temperature must"), ("1" * 9999, "is not JSON")],
)  # fmt: skip
def test_a_wrong_override_is_told_before_the_model_is_read(given, words):
    with pytest.raises(ConfigError, match=f"override_generation_config.*{words}"):
        EngineConfig(override_generation_config=given)


def test_an_override_may_be_a_dict():
    config = EngineConfig.from_options({"override_generation_config": {"top_k": 3}})
    assert config == EngineConfig(override_generation_config='{"top_k": 3}')
    assert EngineConfig.from_options({"override_generation_config": {}}) == EngineConfig()


DEFAULTS = {
    "temperature": [(0, 0.0), (0.0, 0.0), (None, 1.0), (-1, 1.0), (1e999, 1.0), ("0.7", 1.0)],
    "top_p": [(0, 1.0), (1, 1.0), (0.9, 0.9), (None, 1.0), (1.5, 1.0)],
    "top_k": [(0, 0), (-1, -1), (None, 0), (50, 50), (-5, 0), ("x", 0)],
    "min_p": [(0.0, 0.0), (None, 0.0), (2, 0.0)],
    "repetition_penalty": [(1.0, 1.0), (0, 1.0), (None, 1.0)],
    "max_new_tokens": [(None, 16), (9, 9), (-3, 16)],
}


@pytest.mark.parametrize(("name", "value", "expected"), [(n, *case) for n, cases in DEFAULTS.items() for case in cases])
def test_defaults_that_no_request_could_have(tmp_path, caplog, name, value, expected):
    """One of them refused the whole model; vLLM takes the model, and each request says it."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, "top_k": 7, name: value}))
    with caplog.at_level("WARNING", logger="lullm"):
        params = GenerationDefaults.from_folder(tmp_path).params
    assert getattr(params, {"max_new_tokens": "max_tokens"}.get(name, name)) == expected
    assert name == "top_k" or params.top_k == 7
    is_refused = value is not None and value != expected
    assert ("passed over, so that lullm's own default holds" in caplog.text) == is_refused


@pytest.mark.parametrize("load", [ModelConfig, GenerationDefaults])
def test_json_too_deep_to_read(tmp_path, load):
    name = "config.json" if load is ModelConfig else "generation_config.json"
    (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(ModelLoadError, match=name):
        load.from_folder(tmp_path)


def test_an_adapter_alone_is_no_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(ModelLoadError, match="holds an adapter .PEFT..*give its base model, and the adapter as a"):
        ModelConfig.from_folder(tmp_path)
