"""A model from its GGUF file is the model from its folder: every architecture, to the bit in float32."""

import json

import pytest
import torch
from kit.folder.gguf_files import ARCHITECTURES, FORMATS, as_tensor, write_gguf
from kit.model.families import (
    CASES,
    DELTA,
    DOTS,
    FALCON,
    FALCON_GROUPS,
    GEMMA3N,
    GROUPS,
    HALF,
    LATENT,
    MAMBA2,
    MULTIPLIERS,
    OSS,
    ROPE,
    STRETCHED,
    TIED,
    TWO_TYPES,
    YARN_ON_ALL,
    longrope,
)
from kit.model.golden import PagedRun, load_model, prompt, save_model

from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.models.registry import build_model
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.weights.headers import check_headers
from lullm.weights.storage import choose_storage

GROUPED = {"hidden_size": 256, "intermediate_size": 512}
EVEN_YARN = {"rope_parameters": YARN_ON_ALL["rope_parameters"] | {"mscale": 0.9}}
"""A file holds one number for what queries and keys, and all of them, are multiplied by."""
VARIANTS = {
    "Apertus": CASES["Apertus"].variants["plain rope, biases, tied, one kv head"],
    "Llama": {"tie_word_embeddings": True},
    "Qwen2": {},
    "Qwen3": {"rope_parameters": ROPE["yarn"]},
    "Qwen3Moe": CASES["Qwen3Moe"].variants["plain"] | {"norm_topk_prob": True},
    "Gemma2": {"sliding_window": 20, "query_pre_attn_scalar": 16},
    "Gemma3": CASES["Gemma3"].variants["plain"] | {"query_pre_attn_scalar": 16},
    "Phi3": {"sliding_window": 20},
    "Cohere2": CASES["Cohere2"].keys_base | {"num_hidden_layers": 5, "layer_types": ...},
    "FalconH1": FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
    "Gemma3n": GEMMA3N
    | TWO_TYPES
    | {"num_kv_shared_layers": 3, "altup_num_inputs": 3, "altup_active_idx": 1, "tie_word_embeddings": False}
    | {"intermediate_size": [72, 72, 40, 40, 24, 24], "attention_bias": True},
    "Glm4Moe": CASES["Glm4Moe"].keys_base | {"attention_bias": True},
    "DeepseekV2": CASES["DeepseekV2"].keys_base | EVEN_YARN | {"first_k_dense_replace": 1},
    "DeepseekV3": LATENT | GROUPS | EVEN_YARN | {"first_k_dense_replace": 1, "norm_topk_prob": True},
    "Dots1": DOTS | GROUPS | {"first_k_dense_replace": 1},
    "Granite": MULTIPLIERS | {"attention_bias": True, "mlp_bias": True},
    "GraniteMoe": CASES["GraniteMoe"].keys_base,
    "GraniteMoeShared": CASES["GraniteMoeShared"].keys_base,
    "Llama4": {
        "num_local_experts": 5,
        "intermediate_size_mlp": 56,
        "num_hidden_layers": 4,
        "interleave_moe_layer_step": 2,
    },
    "MiniMaxM2": OSS | HALF,
    "Ministral3": {"rope_parameters": STRETCHED["rope_parameters"] | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "Olmo3": CASES["Olmo3"].variants["stretched in full layers"],
    "SeedOss": {"attention_out_bias": True},
}
"""Where the plain variant is not enough."""


def variant(family):
    return VARIANTS.get(family, next(iter(CASES[family].variants.values())))


def logits(path):
    model = load_model(path)
    return PagedRun(model, TORCH_CPU_OPS, 1).step([(0, prompt(1))])


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_logits(tmp_path, family):
    save_model(tmp_path, family, variant(family))
    path = tmp_path / "model.gguf"
    write_gguf(path, tmp_path, family)
    theirs, ours = ModelConfig.from_folder(tmp_path), ModelConfig.from_folder(path)
    check_headers(ours, path)
    assert ours.layer_kinds == theirs.layer_kinds
    assert ours.head_dim == theirs.head_dim and ours.tie_word_embeddings == theirs.tie_word_embeddings
    expected = logits(tmp_path)
    assert expected.std() > 0.3
    torch.testing.assert_close(logits(path), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Falcon", FALCON_GROUPS | {"tie_word_embeddings": False}),
        ("Falcon", FALCON_GROUPS | {"num_ln_in_parallel_attn": 1}),
        ("GPTNeoX", CASES["GPTNeoX"].variants["plain"] | {"use_parallel_residual": False, "attention_bias": False}),
        ("Jamba", CASES["Jamba"].variants["dense, biases, tied"]),
        ("HunYuanDenseV1", CASES["HunYuanDenseV1"].variants["a larger base frequency, biases, tied"]),
        ("HunYuanMoEV1", CASES["HunYuanMoEV1"].variants["a larger base frequency, biases, tied"]),
        ("Mamba2", MAMBA2 | TIED | {"n_groups": 1, "use_bias": True, "use_conv_bias": False}),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_other_kinds(tmp_path, family, options):
    save_model(tmp_path, family, options)
    path = tmp_path / "model.gguf"
    write_gguf(path, tmp_path, family)
    check_headers(ModelConfig.from_folder(path), path)
    torch.testing.assert_close(logits(path), logits(tmp_path), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("family", "name"), [("Llama", "exaone"), ("Llama", "internlm2"), ("Llama", "xverse"), ("Granite", "minicpm")]
)
def test_architectures_that_compute_as_another(tmp_path, family, name):
    """Their own code is not in transformers."""
    options = {} if family == "Llama" else MULTIPLIERS | {"attention_multiplier": 16**-0.5}
    save_model(tmp_path, family, options)
    path = tmp_path / "model.gguf"
    write_gguf(path, tmp_path, family, name=name)
    found, expected = logits(path), logits(tmp_path)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", [name for name in CASES["Gemma4"].variants if "plain" not in name])
def test_kinds_of_gemma_4(tmp_path, name):
    save_model(tmp_path, "Gemma4", CASES["Gemma4"].variants[name])
    path = tmp_path / "model.gguf"
    write_gguf(path, tmp_path, "Gemma4")
    check_headers(ModelConfig.from_folder(path), path)
    torch.testing.assert_close(logits(path), logits(tmp_path), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", [name for name in CASES["NemotronH"].variants if "experts" in name])
def test_nemotron_h_with_experts(tmp_path, name):
    save_model(tmp_path, "NemotronH", CASES["NemotronH"].variants[name] | {"intermediate_size": 24})
    path = tmp_path / "model.gguf"
    write_gguf(path, tmp_path, "NemotronH")
    torch.testing.assert_close(logits(path), logits(tmp_path), atol=1e-4, rtol=0)


def test_phi_with_factors_for_every_frequency(tmp_path):
    """They are tensors in a file."""
    options = longrope(6, 64)
    save_model(tmp_path, "Phi3", options)
    extra = {
        f"rope_factors_{name}.weight": torch.tensor(options["rope_parameters"][f"{name}_factor"]).numpy()
        for name in ("long", "short")
    }
    path = tmp_path / "model.gguf"
    write_gguf(path, tmp_path, "Phi3", extra=extra)
    torch.testing.assert_close(logits(path), logits(tmp_path), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["Apertus", "Llama", "Llama4"])
def test_llama_3s_stretched_rope_is_a_tensor(tmp_path, family):
    from lullm.config.rope import RopeConfig
    from lullm.nn.rotary import rotary_frequencies

    save_model(tmp_path, family, VARIANTS[family] | {"rope_parameters": ROPE["llama3"]})
    config = ModelConfig.from_folder(tmp_path)
    stretched, _ = rotary_frequencies(config, config.family.ropes[0], 128)
    plain, _ = rotary_frequencies(config, RopeConfig(rope_theta=10000.0), 128)
    path = tmp_path / "model.gguf"
    write_gguf(path, tmp_path, family, extra={"rope_freqs.weight": (plain / stretched).numpy()})
    torch.testing.assert_close(logits(path), logits(tmp_path), atol=1e-4, rtol=0)


def test_shards(tmp_path):
    save_model(tmp_path, "Qwen3", {})
    write_gguf(tmp_path / "model.gguf", tmp_path, "Qwen3", split_max_tensors=9)
    first, *others = sorted(tmp_path.glob("*.gguf"))
    assert len(others) > 1 and first.name.startswith("model-00001-of-")
    torch.testing.assert_close(logits(first), logits(tmp_path), atol=1e-4, rtol=0)
    others[1].unlink()
    with pytest.raises(ModelLoadError, match=others[1].name):
        load_model(first)


def test_half_a_shard_set_under_another_name_is_refused(tmp_path):
    save_model(tmp_path, "Qwen3", {})
    write_gguf(tmp_path / "model.gguf", tmp_path, "Qwen3", split_max_tensors=9)
    alone = tmp_path / "alone.gguf"
    sorted(tmp_path.glob("model-*.gguf"))[0].rename(alone)
    with pytest.raises(ModelLoadError, match="one of .* shards and must be named"):
        ModelConfig.from_folder(alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_files(tmp_path, dtype):
    save_model(tmp_path, "Qwen3", {})
    for kind in (FORMATS.F16, FORMATS.BF16):
        path = tmp_path / f"{kind.name}.gguf"
        write_gguf(path, tmp_path, "Qwen3", kind)
        model, whole = load_model(path, dtype), load_model(tmp_path, dtype)
        for (name, found), (_, expected) in zip(model.named_parameters(), whole.named_parameters(), strict=True):
            torch.testing.assert_close(found, expected, atol=2e-2, rtol=1e-2, msg=lambda m, name=name: f"{name}: {m}")


def test_blocks_with_a_code_book(tmp_path, monkeypatch):
    """The optional library decodes them. Without it the error says what to install, before anything is read."""
    save_model(tmp_path, "Qwen3", GROUPED)
    path = tmp_path / "model.gguf"
    chosen = {"blk.1.ffn_up.weight": FORMATS.IQ2_XXS}
    write_gguf(path, tmp_path, "Qwen3", choose=chosen.get)
    found = load_model(path).get_parameter("model.layers.1.mlp.gate_up_proj.weight")[512:]
    torch.testing.assert_close(found, as_tensor(path, "blk.1.ffn_up.weight"), atol=0, rtol=0)
    monkeypatch.setattr("lullm.weights.gguf.blocks.find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match=r"blk.1.ffn_up.weight .* IQ2_XXS, .*pip install 'lullm\[gguf\]'"):
        load_model(path)


@pytest.mark.parametrize(("kind", "stays"), [(FORMATS.Q8_0, True), (FORMATS.Q4_K, False)], ids=["Q8_0", "Q4_K"])
def test_inputs_of_value_heads_in_another_order(tmp_path, kind, stays):
    """Blocks within a head move as they are; those over two heads are decoded."""
    save_model(tmp_path, "Qwen3_5", DELTA | {"linear_value_head_dim": 64})
    path, name = tmp_path / "model.gguf", "blk.0.ssm_out.weight"
    write_gguf(path, tmp_path, "Qwen3_5", choose={name: kind}.get)
    model = build_model(ModelConfig.from_folder(path), torch.float32, 128)
    assert choose_storage(model, None, None, path) == stays
    stored = as_tensor(path, name)
    expected = stored.unflatten(1, (2, 2, 64)).transpose(1, 2).flatten(1)
    found = load_model(path).get_parameter("model.layers.0.linear_attn.out_proj.weight")
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("kinds", "number"),
    [
        (("Q3_K", "Q6_K"), 20),
        (("Q4_K", "Q6_K"), 21),
        (("Q4_0", "Q8_0"), 17),
        (("Q4_1", "Q4_1"), 23),
        (("Q5_1", "Q8_0"), 24),
        (("Q4_K", "Q8_0"), 0),
    ],  # fmt: skip
)
def test_blocks_beside_each_other(tmp_path, kinds, number):
    """A matrix of two kinds of blocks takes the smallest grid that holds both; 0: there is none, it is decoded."""
    save_model(tmp_path, "Qwen3", GROUPED)
    path = tmp_path / "model.gguf"
    chosen = {f"blk.0.ffn_{part}.weight": FORMATS[kind] for part, kind in zip(("gate", "up"), kinds, strict=True)}
    write_gguf(path, tmp_path, "Qwen3", choose=chosen.get)
    model = build_model(ModelConfig.from_folder(path), torch.float32, 128)
    assert choose_storage(model, None, None, path) == (number > 0)
    layout = model.get_submodule("model.layers.0.mlp.gate_up_proj").layout
    assert (layout.format if layout else 0) == number


def test_factors_of_granite_are_no_part_of_blocks(tmp_path):
    """A matrix that is read times a factor is decoded; it used to fail once its blocks were written."""
    save_model(tmp_path, "Granite", VARIANTS["Granite"] | GROUPED)
    path = tmp_path / "model.gguf"
    write_gguf(path, tmp_path, "Granite", FORMATS.Q8_0)
    model = build_model(ModelConfig.from_folder(path), torch.float32, 128)
    kept = choose_storage(model, None, None, path)
    layers = model.get_submodule("model.layers.0")
    assert kept and layers.mlp.gate_up_proj.layout is not None and layers.mlp.down_proj.layout is None


def test_what_is_stored_says_the_type(tmp_path):
    save_model(tmp_path, "Qwen3", {})
    for kind, dtype in ((FORMATS.F32, "float32"), (FORMATS.F16, "float16"), (FORMATS.BF16, "bfloat16")):
        path = tmp_path / f"{kind.name}.gguf"
        write_gguf(path, tmp_path, "Qwen3", kind)
        assert ModelConfig.from_folder(path).dtype == dtype


def test_tensors_that_lack_or_are_too_many_are_named(tmp_path):
    save_model(tmp_path, "Qwen3", {})
    config = json.loads((tmp_path / "config.json").read_text())
    path = tmp_path / "model.gguf"
    extra = {"blk.1.attn_rot.weight": torch.ones(4).numpy()}
    write_gguf(path, tmp_path, "Qwen3", extra=extra)
    with pytest.raises(ModelLoadError, match="unexpected tensor blk.1.attn_rot.weight"):
        load_model(path)
    config["num_hidden_layers"] += 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_gguf(path, tmp_path, "Qwen3")
    with pytest.raises(ModelLoadError, match="num_hidden_layers is 4, and the files hold 3"):
        check_headers(ModelConfig.from_folder(path), path)


@pytest.mark.parametrize("shape", [(5000, 1, 1), (8,)], ids=str)
def test_experts_beyond_any_model_are_refused(tmp_path, shape):
    """Each expert takes a name: those of a file of 100 MB took gigabytes."""
    save_model(tmp_path, "Qwen3", {})
    path = tmp_path / "model.gguf"
    write_gguf(path, tmp_path, "Qwen3", extra={"blk.0.ffn_up_exps.weight": torch.ones(shape).numpy()})
    with pytest.raises(ModelLoadError, match="blk.0.ffn_up_exps.weight has shape .*none of 1 to 4096 experts"):
        load_model(path)
