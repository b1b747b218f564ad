"""Every key of the encoders' config classes; what is wrong, or unused, in their files.

Their results are in `engine/test_encoder_only.py`.
"""

import dataclasses

import pytest
import transformers
from kit.folder.encoder_only import SIZES, write_encoder

from lullm.config.family.keys import COMMON_FIXED, COMMON_IGNORES, COMMON_READS
from lullm.config.family.table import ENCODED_FAMILIES, ENCODER_ONLY_FAMILIES, FAMILIES
from lullm.config.model import ModelConfig
from lullm.config.pooling.architecture import ENCODERS
from lullm.errors import FamilyLimitError, ModelLoadError
from lullm.types.layer_kind import EncoderOnlyAttention


def read(architecture, **keys):
    return ModelConfig.from_dict({"architectures": [architecture], **SIZES, **keys})


def test_every_architecture_is_named():
    assert {f"{family}Model" for family in ENCODERS} | {"LlamaBidirectionalModel"} == ENCODER_ONLY_FAMILIES.keys()
    assert not ENCODER_ONLY_FAMILIES.keys() & (FAMILIES.keys() | ENCODED_FAMILIES.keys())


@pytest.mark.parametrize("architecture", [f"{family}Model" for family in sorted(ENCODERS - {"New"})])
def test_every_key_is_declared_with_the_default_of_transformers(architecture):
    family, config_class = ENCODER_ONLY_FAMILIES[architecture], getattr(transformers, architecture).config_class
    declared = COMMON_READS | COMMON_FIXED.keys() | COMMON_IGNORES | family.reads | family.fixed.keys() | family.ignores
    declared |= family.aliases.keys() | family.defaults.keys()
    fields = {field.name: field.default for field in dataclasses.fields(config_class)}
    assert {name for name in fields if not name.startswith("_")} <= declared
    stated = {name: value for name, value in family.defaults.items() if name in fields}
    assert stated == {name: fields[name] for name in stated}
    rope_theta = family.defaults.get("rope_theta")
    assert rope_theta in (None, config_class.default_theta)


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("BertModel", "position_embedding_type", "relative_key"),
        ("BertModel", "is_decoder", True),
        ("BertModel", "type_vocab_size", -1),
        ("BertModel", "hidden_act", "tanh"),
        ("BertForSequenceClassification", "add_cross_attention", True),
        ("RobertaModel", "pad_token_id", 400),
        ("ModernBertModel", "layer_types", ["full_attention"]),
        ("ModernBertModel", "local_attention", 0),
        ("ModernBertModel", "classifier_pooling", "max"),
        ("ModernBertModel", "norm_bias", True),
        ("NomicBertModel", "prenorm", True),
        ("GteModel", "sliding_window_size", 9),
        ("NewModel", "position_embedding_type", "absolute"),
        ("NewModel", "pack_qkv", False),
        ("NewModel", "logn_attention_scale", True),
        ("NewModel", "layer_norm_type", "rms_norm"),
        ("NewModel", "rope_scaling", {"type": "ntk", "factor": 8.0, "mixed_b": 0.6}),
        ("ElectraModel", "embedding_size", 0),
        ("MPNetModel", "relative_attention_num_buckets", 64),
        ("AlbertModel", "inner_group_num", 2),
        ("AlbertModel", "num_hidden_groups", 4),
        ("AlbertModel", "embedding_size", 48),
        ("DebertaV2Model", "relative_attention", False),
    ],
)
def test_what_is_wrong_is_named(architecture, key, value):
    with pytest.raises((ModelLoadError, FamilyLimitError), match=key):
        read(architecture, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pos_att_type", None),
        ("pos_att_type", "c2p|p2p"),
        ("norm_rel_ebd", "rms_norm"),
        ("position_buckets", 1),
        ("position_buckets", 400),
        ("conv_kernel_size", 2),
        ("conv_groups", 4),
        ("embedding_size", 12),
        ("pooler_hidden_size", 12),
        ("pooler_hidden_act", "mish"),
    ],
)
def test_what_is_wrong_in_a_deberta_is_named(key, value):
    keys = {"relative_attention": True, "pos_att_type": "c2p|p2c", key: value}
    with pytest.raises((ModelLoadError, FamilyLimitError), match=key):
        read("DebertaV2Model", **keys)


def test_older_names_of_keys():
    """Of the code that came with NomicBERT's first checkpoints."""
    config = ModelConfig.from_dict(
        {
            "architectures": ["NomicBertModel"], "vocab_size": 140, "n_embd": 48, "n_layer": 3, "n_head": 4,
            "n_inner": 72, "n_positions": 8192, "max_trained_positions": 2048, "rotary_emb_base": 1000,
            "layer_norm_epsilon": 1e-12, "activation_function": "swiglu", "prenorm": False, "qkv_proj_bias": False,
            "rotary_emb_fraction": 1.0, "rotary_scaling_factor": None, "type_vocab_size": 2, "causal": False,
        }
    )  # fmt: skip
    assert config.max_position_embeddings == 2048 and config.family.ropes[0].rope_theta == 1000
    assert (config.hidden_size, config.family.intermediate_size, config.family.activation) == (48, 72, "silu")


def test_lengths_and_windows():
    assert read("BertModel").max_position_embeddings == 130
    assert read("XLMRobertaModel").max_position_embeddings == 128, "rows up to the padding's have no token"
    kinds = read("ModernBertModel", local_attention=20).layer_kinds
    assert kinds == (EncoderOnlyAttention(), EncoderOnlyAttention(10), EncoderOnlyAttention(10))


@pytest.mark.parametrize(
    "architecture",
    [
        "BertForMaskedLM",
        "RobertaForMaskedLM",
        "ModernBertForMaskedLM",
        "DistilBertForMaskedLM",
        "MPNetForMaskedLM",
        "AlbertForMaskedLM",
        "DebertaV2ForMaskedLM",
    ],
)
def test_heads_of_training_are_not_read(tmp_path, architecture):
    from kit.model.golden import load_model

    of_family = {
        "DistilBertForMaskedLM": {"hidden_dim": SIZES["intermediate_size"]},
        "AlbertForMaskedLM": {"embedding_size": 32},
        "DebertaV2ForMaskedLM": {"relative_attention": True, "pos_att_type": "c2p|p2c"},
    }
    options = of_family.get(architecture, {})
    write_encoder(tmp_path, architecture, **options)
    names = {name.split(".")[0] for name, _ in load_model(tmp_path, max_model_len=64).named_parameters()}
    assert names == {"model"}
