"""Loading: every tensor to its place, and every fault named."""

import json

import pytest
import torch
from safetensors.torch import save_file

from lullm.errors import ModelLoadError
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.weights import loader
from lullm.weights.loader import load_weights
from lullm.weights.reading.files import missing_files
from lullm.weights.rows.place import PlainRows


def assert_loaded(model, checkpoint):
    """Compare, spelling the fusion out."""
    parameters = dict(model.named_parameters())
    expected = dict(checkpoint)
    for layer in ("model.layers.0.", "model.layers.1."):
        qkv = [expected.pop(f"{layer}self_attn.{part}_proj.weight") for part in "qkv"]
        expected[f"{layer}self_attn.qkv_proj.weight"] = torch.cat(qkv)
        gate_up = [expected.pop(f"{layer}mlp.{part}_proj.weight") for part in ("gate", "up")]
        expected[f"{layer}mlp.gate_up_proj.weight"] = torch.cat(gate_up)
    assert set(parameters) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(parameters[name], tensor.to(parameters[name].dtype)), name


def test_one_file(tmp_path, make_model, checkpoint):
    save_file(checkpoint, tmp_path / "model.safetensors")
    model = make_model()
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    load_weights(model, tmp_path, TORCH_CPU_OPS)
    assert_loaded(model, checkpoint)
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == before  # filled in place


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16], ids=str)
def test_shards_and_dtypes(tmp_path, make_model, checkpoint, save_shards, stored, wanted):
    checkpoint = {name: tensor.to(stored) for name, tensor in checkpoint.items()}
    save_shards(tmp_path, checkpoint)
    model = make_model(wanted)
    load_weights(model, tmp_path, TORCH_CPU_OPS)
    assert_loaded(model, checkpoint)


def test_shards_without_an_index(tmp_path, make_model, checkpoint):
    """As some tools leave them: all that the name of one counts."""
    names = sorted(checkpoint)
    for number in range(2):
        part = {name: checkpoint[name] for name in names[number::2]}
        save_file(part, tmp_path / f"model-{number + 1:05}-of-00002.safetensors")
    model = make_model()
    load_weights(model, tmp_path, TORCH_CPU_OPS)
    assert_loaded(model, checkpoint)
    save_file(checkpoint, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(ModelLoadError, match="00002-of-00002.safetensors is damaged .* another file holds .*, too"):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="lacks the weight files model-00001-of-00002.safetensors"):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)
    save_file({}, tmp_path / "model-00001-of-00003.safetensors")
    with pytest.raises(ModelLoadError, match="shards of several checkpoints"):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("consolidated.safetensors", "Mistral's own layout, .*; take the copy that holds model.safetensors, or"),
        ("adapter_model.safetensors", r"an adapter \(PEFT\) without its model; give the model"),
        (
            "weights.safetensors",
            "holds weights.safetensors and no model.safetensors; if it is the whole model, rename it",
        ),
        ("pytorch_model.bin", "pickled weights only"),
    ],
)
def test_other_files_are_named_with_what_to_do(tmp_path, make_model, checkpoint, name, said):
    save_file(checkpoint, tmp_path / name)
    with pytest.raises(ModelLoadError, match=said):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)


def test_a_folder_in_the_place_of_the_file(tmp_path, make_model):
    """It was said to hold model.safetensors and no model.safetensors."""
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ModelLoadError, match="lacks the weight files model.safetensors"):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)


def test_a_tied_head_may_be_stored_or_not(tmp_path, make_model, checkpoint):
    head = checkpoint.pop("lm_head.weight")
    for extra in ({}, {"lm_head.weight": head}):
        save_file(checkpoint | extra, tmp_path / "model.safetensors")
        model = make_model(tie_word_embeddings=True)
        load_weights(model, tmp_path, TORCH_CPU_OPS)
        assert_loaded(model, checkpoint)


def test_harmless_extras_and_names_without_prefix(tmp_path, make_model, checkpoint):
    renamed = {name.removeprefix("model."): tensor for name, tensor in checkpoint.items()}
    renamed["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(renamed, tmp_path / "model.safetensors")
    model = make_model()
    load_weights(model, tmp_path, TORCH_CPU_OPS)
    assert_loaded(model, checkpoint)


def test_every_fault_is_named(tmp_path, make_model, checkpoint, save_shards):
    del checkpoint["model.norm.weight"], checkpoint["model.layers.1.self_attn.k_proj.weight"]
    checkpoint["model.layers.7.mlp.up_proj.weight"] = torch.ones(3)
    checkpoint["model.layers.0.self_attn.q_proj.bias"] = torch.ones(32)
    checkpoint["model.layers.0.mlp.gate_proj.weight"] = torch.ones(24, 17)
    checkpoint["model.layers.0.mlp.up_proj.weight"] = torch.ones(24, 16, dtype=torch.int8)
    save_shards(tmp_path, checkpoint)
    with pytest.raises(ModelLoadError) as caught:
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)
    lines = sorted(line.strip() for line in str(caught.value).split("\n")[1:])
    assert lines == [
        "missing tensor model.layers.1.self_attn.k_proj.weight",
        "missing tensor model.norm.weight",
        "model.layers.0.mlp.gate_proj.weight has shape [24, 17], the model's has [24, 16]",
        "model.layers.0.mlp.up_proj.weight is torch.int8, and config.json has no "
        "quantization_config that says what it means",
        "unexpected tensor model.layers.0.self_attn.q_proj.bias",
        "unexpected tensor model.layers.7.mlp.up_proj.weight",
    ]


def test_a_fused_tensor_of_the_wrong_shape_spoils_nothing(tmp_path, make_model, checkpoint):
    """A part that would fit by broadcasting is refused all the same."""
    checkpoint["model.layers.0.self_attn.k_proj.weight"] = torch.ones(1, 16)
    save_file(checkpoint, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"k_proj.weight has shape \[1, 16\], the model's has \[16, 16\]"):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)


@pytest.mark.parametrize("kept_share", [0.0, 0.0001, 0.3, 0.99])
def test_a_truncated_file_is_named(tmp_path, make_model, checkpoint, save_shards, kept_share):
    shard = save_shards(tmp_path, checkpoint)[1]
    data = shard.read_bytes()
    shard.write_bytes(data[: int(len(data) * kept_share)])
    with pytest.raises(ModelLoadError, match="model-00002-of-00003.safetensors is damaged"):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)


def test_a_file_of_garbage_is_named(tmp_path, make_model):
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 4096)
    with pytest.raises(ModelLoadError, match="model.safetensors is damaged"):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)


def test_a_missing_shard_is_named(tmp_path, make_model, checkpoint, save_shards):
    shards = save_shards(tmp_path, checkpoint)
    assert missing_files(tmp_path) == []
    shards[0].unlink()
    shards[2].unlink()
    assert missing_files(tmp_path) == [shards[0].name, shards[2].name]
    with pytest.raises(ModelLoadError, match="lacks .* model-00001-of-00003.safetensors, model-00003-of-00003"):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)


def test_a_tensor_that_the_index_promises_and_its_shard_lacks(tmp_path, make_model, checkpoint, save_shards):
    shards = save_shards(tmp_path, checkpoint, num_shards=1)
    del checkpoint["model.norm.weight"]
    save_file(checkpoint, shards[0])
    with pytest.raises(ModelLoadError, match="missing tensor model.norm.weight"):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)


@pytest.mark.parametrize(
    "index",
    [
        "{",
        "[]",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": "../secret.safetensors"}}',
    ],
)
def test_a_damaged_index(tmp_path, make_model, index):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelLoadError, match="model.safetensors.index.json"):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)


def test_folders_without_safetensors(tmp_path, make_model):
    with pytest.raises(ModelLoadError, match="no model folder"):
        load_weights(make_model(), tmp_path / "nowhere", TORCH_CPU_OPS)
    with pytest.raises(ModelLoadError, match="lacks the weight files model.safetensors"):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelLoadError, match="safetensors only"):
        load_weights(make_model(), tmp_path, TORCH_CPU_OPS)


def test_the_index_wins_over_a_second_copy(tmp_path, make_model, checkpoint, save_shards):
    """A shard may hold a tensor that the index assigns to another one."""
    shards = save_shards(tmp_path, checkpoint)
    owners = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    stray = next(name for name, file in owners.items() if file == shards[0].name)
    own = {name: tensor for name, tensor in checkpoint.items() if owners[name] == shards[2].name}
    save_file(own | {stray: torch.zeros_like(checkpoint[stray])}, shards[2])
    model = make_model()
    load_weights(model, tmp_path, TORCH_CPU_OPS)
    assert_loaded(model, checkpoint)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_pieces_and_threads(tmp_path, monkeypatch, make_model, checkpoint, save_shards, num_threads):
    """Tensors in pieces of a few rows, the last of which is shorter, copied by several threads at a time."""
    monkeypatch.setattr(loader, "_PIECE_BYTES", 7 * 16 * 4)
    save_shards(tmp_path, checkpoint)
    model = make_model()
    before = torch.get_num_threads()
    load_weights(model, tmp_path, TORCH_CPU_OPS, num_threads)
    assert_loaded(model, checkpoint)
    assert torch.get_num_threads() == before


def test_no_thread_gets_a_whole_vocabulary():
    def cut(values):
        pieces = list(loader._cut(PlainRows(torch.empty(values.shape)), values, 4 * values.numel()))
        assert sum(piece.num_bytes for piece in pieces) in range(4 * values.numel() - 3, 4 * values.numel() + 1)
        return [(piece.first_row, len(piece.values)) for piece in pieces]

    assert cut(torch.empty(40, 16)) == [(0, 40)], "little is one piece"
    assert cut(torch.empty(600_000, 16)) == [(0, 262_144), (262_144, 262_144), (524_288, 75_712)]
    assert cut(torch.ones(())) == [(0, 1)]
