"""Families with code of their own in their checkpoints: names and keys that only published files have."""

import json

import pytest
from kit.model.families import CASES
from kit.model.golden import SIZES, PagedRun, assert_close, golden_logits, load_model, prompt, save_model
from kit.model.renamed import RENAMED, renamed_of

from lullm.config.family.table import FAMILIES, family_of
from lullm.config.model import ModelConfig
from lullm.config.pooling.architecture import split_architecture
from lullm.errors import ModelLoadError
from lullm.models.fallback.choice import read_model_config
from lullm.ops.selection import TORCH_CPU_OPS

TOKENS = prompt(1, 40)


def read(family, **keys):
    """The config of a file of common keys and these."""
    return ModelConfig.from_dict(SIZES | {"architectures": [f"{family}ForCausalLM"]} | keys)


def say(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_no_class_of_transformers_has_their_names():
    import transformers

    for family in RENAMED:
        assert not hasattr(transformers, f"{family}ForCausalLM"), "then the class itself is the golden"


@pytest.mark.parametrize("name", ["AquilaModel", "LLaMAForCausalLM"])
def test_other_names(name):
    assert family_of(split_architecture(name).base) in FAMILIES.values()
    assert ModelConfig.from_dict(SIZES | {"architectures": [name]}).generates


def test_a_stored_head_that_config_json_denies(tmp_path):
    theirs = save_model(tmp_path, "InternLM2", CASES["InternLM2"].variants["plain"])
    say(tmp_path, tie_word_embeddings=True)
    assert not read_model_config(tmp_path, "auto").ties_head
    assert_close(PagedRun(load_model(tmp_path), TORCH_CPU_OPS, 1).step([(0, TOKENS)]), golden_logits(theirs, TOKENS))


def test_what_a_missing_key_means():
    assert read("InternLM2").family.attention_bias and not read("InternLM2").family.mlp_bias
    assert read("InternLM").family.attention_bias
    assert read("Exaone", num_layers=2).tie_word_embeddings and read("Exaone", num_layers=2).num_hidden_layers == 2
    assert read("Exaone", intermediate_size=None).family.intermediate_size == 4 * SIZES["hidden_size"]
    minicpm = read("MiniCPM")
    assert minicpm.tie_word_embeddings and minicpm.family.logit_scale == 1 / SIZES["hidden_size"]
    assert minicpm.family.residual_scale == pytest.approx(3**-0.5) and minicpm.family.embedding_scale == 1
    assert read("MiMo").family.attention_bias and not read("MiMo").family.has_output_bias
    assert read("Orion").family.rms_norm_eps == 1e-5


def test_the_rotation_of_internlm():
    plain = read("InternLM", rotary={"base": 500, "type": "origin"}).family.ropes[0]
    assert (plain.rope_type, plain.rope_theta) == ("default", 500)
    dynamic = read("InternLM", rotary={"base": 10000, "type": "dynamic"}).family.ropes[0]
    assert (dynamic.rope_type, dynamic.factor) == ("dynamic", 1.0)
    for wrong in ({"type": "yarn"}, {"type": "dynamic", "beta": 2}):
        with pytest.raises(ModelLoadError, match="rotary .* is not supported, only base"):
            read("InternLM", rotary=wrong)


REFUSED = {
    "Exaone": {"attention_bias": True, "rotary_pct": 0.25},
    "InternLM2": {"scale_emb": 12},
    "MiMo": {"attention_bias": False},
    "MiniCPM": {"sparse_config": {"topk": 64}, "num_experts": 8},
    "Orion": {"mlp_bias": True},
    "Xverse": {"clip_qkv": 4.0},
}


@pytest.mark.parametrize(("family", "key"), [(family, key) for family, keys in REFUSED.items() for key in keys])
def test_what_changes_the_arithmetic_is_refused(family, key):
    with pytest.raises(ModelLoadError, match=f"{key} .*{family}ForCausalLM"):
        read(family, **{key: REFUSED[family][key]})


@pytest.mark.parametrize("family", RENAMED)
def test_published_files_have_their_own_names(tmp_path, family):
    """The tests of all families read what a release looks like, and every key of it is known."""
    save_model(tmp_path, family, CASES[family].engine)
    data = json.loads((tmp_path / "config.json").read_text())
    assert renamed_of(data["architectures"][0]) is RENAMED[family]
    assert ModelConfig.from_folder(tmp_path).unknown_keys == ()
