"""Families with code of their own in their checkpoints: names and keys that only published files have."""

import json

import pytest
from kit.model.families import CASES, DECILM, block
from kit.model.golden import (
    SIZES,
    PagedRun,
    architecture_of,
    assert_close,
    golden_logits,
    load_model,
    prompt,
    save_model,
)
from kit.model.renamed import RENAMED, renamed_of

from lullm.config.family.table import FAMILIES, family_of
from lullm.config.model import ModelConfig
from lullm.config.pooling.architecture import split_architecture
from lullm.errors import ModelLoadError
from lullm.models.fallback.choice import read_model_config
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.types.layer_kind import FullAttention, KVHeads, Nothing

TOKENS = prompt(1, 40)


def read(family, **keys):
    """The config of a file of common keys and these."""
    return ModelConfig.from_dict(SIZES | {"architectures": [architecture_of(family)]} | keys)


def say(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_no_class_of_transformers_has_their_names():
    import transformers

    for family in RENAMED:
        assert not hasattr(transformers, architecture_of(family)), "then the class itself is the golden"


@pytest.mark.parametrize("name", ["AquilaModel", "BaiChuanForCausalLM", "ChatGLMModel", "LLaMAForCausalLM"])
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


def test_which_baichuan_it_is():
    """By sizes, and by the keys of a file."""
    heads = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128}
    for vocab_size in (64000, 125696):
        small = read("Baichuan", **heads, vocab_size=vocab_size)
        assert not small.family.alibi_slopes and small.family.norms_head == (vocab_size == 125696)
    large = heads | {"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 40}
    found = read("Baichuan", **large, max_position_embeddings=None, model_max_length=4096)
    assert len(found.family.alibi_slopes) == 40 and found.max_position_embeddings == 4096
    assert found.family.alibi_slopes[0] == 2**-0.25 and found.family.alibi_slopes[32] == 2**-0.125
    assert read("Baichuan", **large).family.alibi_slopes, "whatever else the file of a 13B says"
    assert set(found.family.ropes) == {None}


def test_the_rotation_of_chatglm():
    found = read("ChatGLM", rope_ratio=500, multi_query_attention=True, multi_query_group_num=2, kv_channels=16)
    assert found.family.ropes[0].rope_theta == 5e6 and found.family.rotary_dim(16) == 8
    assert found.num_key_value_heads == 2 and not found.family.attention_bias
    assert read("ChatGLM", multi_query_attention=False, multi_query_group_num=2).num_key_value_heads == 4
    assert read("ChatGLM", padded_vocab_size=192).vocab_size == 192


def test_qwen_ends_where_its_training_did():
    """Behind `seq_length` queries grow by the logarithm of their position, if the file says so."""
    keys = {"kv_channels": 16, "max_position_embeddings": 32768}
    assert read("QWen", **keys, seq_length=8192).max_position_embeddings == 8192
    plain = read("QWen", **keys, seq_length=8192, use_logn_attn=False, use_dynamic_ntk=False)
    assert plain.max_position_embeddings == 32768 and plain.family.intermediate_size == SIZES["intermediate_size"] // 2
    assert plain.num_key_value_heads == 4 and plain.family.attention_bias and not plain.family.has_output_bias
    with pytest.raises(ModelLoadError, match=r"intermediate_size \(97\) must be even"):
        read("QWen", intermediate_size=97)


def test_the_router_of_ling():
    first = read("BailingMoe", **BAILING_SIZES, num_shared_experts=2).family.experts
    assert (first.scoring, first.has_correction, first.num_groups) == ("softmax", False, 1)
    assert first.shared_intermediate_size == 48 and first.normalizes and all(first.layers)
    second = read("BailingMoeV2", **BAILING_SIZES, n_group=2, topk_group=1, first_k_dense_replace=1).family.experts
    assert (second.scoring, second.has_correction, second.num_groups, second.scale) == ("sigmoid", True, 2, 2.5)
    assert second.shared_intermediate_size is None and second.layers == (False, True, True)
    wide = BAILING_SIZES | {"num_shared_experts": 1, "moe_shared_expert_intermediate_size": 40}
    assert read("BailingMoe", **wide).family.experts.shared_intermediate_size == 40
    assert not read("BailingMoe", **BAILING_SIZES | {"num_experts_per_tok": 1}).family.experts.normalizes


BAILING_SIZES = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "use_bias": False}


def test_the_rotation_of_ling():
    """Some files say the part of a head as a share, some as a number, some both."""
    keys = BAILING_SIZES | {"n_group": 1, "topk_group": 1}
    for stated in (
        {},
        {"partial_rotary_factor": 0.5},
        {"rotary_dim": 8},
        {"rotary_dim": 8, "partial_rotary_factor": 0.5},
    ):
        assert read("BailingMoeV2", **keys, **stated).family.rotary_dim(16) == 8
    assert read("BailingMoeV2", **keys, rotary_dim=4).family.rotary_dim(16) == 4
    with pytest.raises(ModelLoadError, match=r"rotary_dim .4. and partial_rotary_factor .0.5. .* contradict"):
        read("BailingMoeV2", **keys, rotary_dim=4, partial_rotary_factor=0.5)


def test_the_biases_of_ling():
    """Without the key their own code has biases, in the first version of experts, too."""
    with pytest.raises(ModelLoadError, match="use_bias true, or missing"):
        read("BailingMoe", **BAILING_SIZES | {"use_bias": None})
    keys = BAILING_SIZES | {"n_group": 1, "topk_group": 1}
    family = read("BailingMoeV2", **keys | {"use_bias": None}).family
    assert family.attention_bias and family.has_output_bias and not family.mlp_bias
    family = read("BailingMoeV2", **keys, use_qkv_bias=True).family
    assert family.attention_bias and not family.has_output_bias


def test_the_layers_of_decilm():
    found = read("DeciLM", **DECILM | {"head_dim": None, "num_key_value_heads": None, "intermediate_size": None})
    sizes = 256, 256, 256, 512, 0
    assert found.family.intermediate_sizes == sizes and found.family.matrix_layers == (False, False, True, False, False)
    assert found.layer_kinds == (FullAttention(), Nothing(), Nothing(), FullAttention(), FullAttention())
    assert (found.num_key_value_heads, found.head_dim) == (2, 12), "the model's, since no layer has others"
    stated = read("DeciLM", block_configs=[block(4, 1.0), block(1, 1.0) | {"ffn": {"intermediate_size": 40}}] + [EMPTY])
    assert stated.layer_kinds == (FullAttention(KVHeads(1, 16)), FullAttention(KVHeads(4, 16)), Nothing())
    assert stated.family.intermediate_sizes == (256, 40, 0)


EMPTY = block(None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention": {"n_heads_in_group": 3}}, "num_attention_heads .4. must be a multiple of n_heads_in_group"),
        ({"attention": {"n_heads_in_group": 2, "window_length": 8}}, "window_length 8 is not supported"),
        ({"attention": {}}, "n_heads_in_group must be a positive integer"),
        ({"attention": {"no_op": 1}}, "no_op must be true or false"),
        ({"ffn": {"ffn_mult": 1.0, "moe": {"num_experts": 2}}}, "moe .* is not supported"),
        ({"ffn": {"replace_with_linear": True}}, "replace_with_linear True is not supported"),
        ({"ffn": {"ffn_mult": 1.0, "hidden_act": "gelu"}}, "hidden_act 'gelu' is not the model's"),
        ({"ffn": {"ffn_mult": 1e6}}, "ffn_mult must be"),
        ({"ffn": {}}, "must have ffn_mult or intermediate_size"),
        ({"ffn": None}, "must have attention and ffn"),
        ({"parallel_blocks": 2}, "parallel_blocks 2 is not supported"),
    ],
)
def test_layers_of_decilm_that_are_refused(change, message):
    with pytest.raises(ModelLoadError, match=message):
        read("DeciLM", block_configs=[block(2, 1.0), EMPTY, block(2, 1.0) | change])


@pytest.mark.parametrize("keys", [{}, {"block_configs": [EMPTY]}, {"num_key_value_heads_per_layer": [2, 3, 4]}])
def test_layers_of_decilm_that_are_missing(keys):
    with pytest.raises(ModelLoadError, match="block_configs|num_key_value_heads_per_layer"):
        read("DeciLM", **keys)


REFUSED = {
    "QWen": {"no_bias": False, "rotary_pct": 0.5},
    "Baichuan": {"attention_bias": True},
    "BailingMoe": {"norm_head": True, "use_rmsnorm": False, "score_function": "sigmoid"},
    "BailingMoeV2": {"score_function": "softmax", "moe_router_enable_expert_bias": False, "norm_topk_prob": False},
    "ChatGLM": {"position_encoding_2d": True, "rmsnorm": False, "quantization_bit": 4, "pre_seq_len": 128},
    "Exaone": {"attention_bias": True, "rotary_pct": 0.25},
    "InternLM2": {"scale_emb": 12},
    "MiMo": {"attention_bias": False},
    "MiniCPM": {"sparse_config": {"topk": 64}, "num_experts": 8},
    "Orion": {"mlp_bias": True},
    "Xverse": {"clip_qkv": 4.0},
}


@pytest.mark.parametrize(("family", "key"), [(family, key) for family, keys in REFUSED.items() for key in keys])
def test_what_changes_the_arithmetic_is_refused(family, key):
    with pytest.raises(ModelLoadError, match=f"{key} .*{architecture_of(family)}"):
        read(family, **{key: REFUSED[family][key]})


@pytest.mark.parametrize("family", RENAMED)
def test_published_files_have_their_own_names(tmp_path, family):
    """The tests of all families read what a release looks like, and every key of it is known."""
    save_model(tmp_path, family, CASES[family].engine)
    data = json.loads((tmp_path / "config.json").read_text())
    assert renamed_of(data["architectures"][0]) is RENAMED[family]
    assert ModelConfig.from_folder(tmp_path).unknown_keys == ()
