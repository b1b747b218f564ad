"""An adapter's own settings: what is read, and what is refused by name."""

import json

import pytest

from lullm.config.lora.adapter import AdapterConfig
from lullm.errors import ModelLoadError

PLAIN = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
PEFTS = {
    "alpha_pattern": {}, "auto_mapping": None, "base_model_name_or_path": "x/y", "fan_in_fan_out": False,
    "inference_mode": True, "init_lora_weights": True, "layer_replication": None, "layers_pattern": None,
    "layers_to_transform": None, "loftq_config": {}, "lora_dropout": 0.05, "megatron_core": "megatron.core",
    "modules_to_save": None, "rank_pattern": {}, "revision": None, "task_type": "CAUSAL_LM", "use_dora": False,
    "use_rslora": False, "trainable_token_indices": None, "exclude_modules": None, "eva_config": None,
    "corda_config": None, "lora_bias": False, "qalora_group_size": 16, "target_parameters": None, "use_qalora": False,
    "a_key_of_tomorrow": None,
}  # fmt: skip


def read(tmp_path, **changes):
    (tmp_path / "adapter_config.json").write_text(json.dumps(PLAIN | changes))
    return AdapterConfig.from_folder(tmp_path)


def test_what_peft_writes(tmp_path):
    config = read(tmp_path, **PEFTS)
    assert config == AdapterConfig(8, 16.0, targets=("q_proj", "v_proj"))
    assert config.factor_of("model.layers.0.self_attn.q_proj") == 2.0


def test_patterns_and_stabilised_ranks(tmp_path):
    config = read(
        tmp_path, use_rslora=True, rank_pattern={"layers.1.self_attn.q_proj": 4, "down_proj": 16},
        alpha_pattern={r"layers\.[01]\.mlp\.down_proj": 32}, target_modules="all-linear",
    )  # fmt: skip
    assert [config.rank_of(f"model.layers.{layer}.self_attn.q_proj") for layer in (0, 1, 11)] == [8, 4, 8]
    assert config.factor_of("model.layers.1.self_attn.q_proj") == 16 / 4**0.5
    assert config.factor_of("model.layers.1.mlp.down_proj") == 32 / 16**0.5
    assert config.factor_of("model.layers.2.mlp.down_proj") == 16 / 16**0.5
    assert config.targets == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', and a LoRA adapter's is LORA"),
        ({"use_dora": True}, "use_dora is True: DoRA also scales.*merge the adapter"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is .'lm_head'.: layers are trained whole"),
        ({"bias": "all"}, "bias is 'all': biases are trained"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters.*parameters of experts"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights.*path_initial_model_for_weight_conversion"),
        ({"a_key_of_tomorrow": 3}, "nothing is known about 'a_key_of_tomorrow', which is 3"),
        ({"r": 0}, "r must be an integer from 1"),
        ({"r": True}, "r must be an integer from 1"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
        ({"rank_pattern": {"q_proj": "8"}}, "rank_pattern must be an integer"),
        ({"rank_pattern": {"(": 8}}, "is no pattern"),
        ({"alpha_pattern": {"(a+)+$": 8}}, "repeats too much"),
        ({"rank_pattern": [1]}, "rank_pattern must be an object"),
        ({"target_modules": 5}, "target_modules must be a list"),
        ({"use_rslora": 1}, "use_rslora must be true or false"),
    ],
    ids=str,
)
def test_what_is_refused(tmp_path, changes, said):
    with pytest.raises(ModelLoadError, match=f"adapter_config.json: .*{said}"):
        read(tmp_path, **changes)


def test_no_adapter(tmp_path):
    with pytest.raises(ModelLoadError, match="has no adapter_config.json; a LoRA adapter is a local folder"):
        AdapterConfig.from_folder(tmp_path)
    with pytest.raises(ModelLoadError, match="is no folder"):
        AdapterConfig.from_folder(tmp_path / "none")
