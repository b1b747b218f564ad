"""Which file reads pictures beside a GGUF model, and what its keys say: a config, or an error that names the fault."""

from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from lullm.config.gguf.file import GGUFFile
from lullm.config.gguf.format import FORMATS
from lullm.config.gguf.header import TensorPlace
from lullm.config.gguf.mmproj import reading
from lullm.config.gguf.mmproj.finding import Found, choose_mmproj, find_mmproj, is_mmproj
from lullm.config.gguf.mmproj.kind import KINDS
from lullm.config.vision.reading import TextFacts
from lullm.errors import ModelLoadError


@pytest.mark.parametrize(
    ("names", "model", "chosen"),
    [
        (["m-Q4_K_M.gguf", "README.md"], "m-Q4_K_M.gguf", None),
        (["m.gguf", "mmproj-model-f16.gguf"], "m.gguf", "mmproj-model-f16.gguf"),
        (["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"], "m-UD-Q4_K_XL.gguf", "mmproj-F16.gguf"),
        (["mmproj-F32.gguf", "mmproj-BF16.gguf"], "m-Q8_0.gguf", "mmproj-BF16.gguf"),
        (["Pixtral-mmproj-Q8_0.gguf"], "Pixtral-Q4_0.gguf", "Pixtral-mmproj-Q8_0.gguf"),
        (["mmproj-a-it-f16.gguf", "mmproj-b-it-f16.gguf"], "b-it-Q4_K_M.gguf", "mmproj-b-it-f16.gguf"),
        (["mmproj-F16.gguf"], "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", "mmproj-F16.gguf"),
        (["mmproj-F16.gguf", "a/mmproj-F32.gguf", "b/mmproj-F16.gguf"], "a/m.gguf", "a/mmproj-F32.gguf"),
        (["b/mmproj-F16.gguf"], "a/m.gguf", None),
    ],
)
def test_the_file_of_a_model(names, model, chosen):
    assert choose_mmproj(names, model) == chosen
    assert choose_mmproj(names[::-1], model) == chosen
    assert is_mmproj("x/MMPROJ-f16.GGUF") and not is_mmproj("mmproj-f16.bin")


def test_of_several_the_user_chooses():
    with pytest.raises(ModelLoadError, match=r"\(mmproj-a-f16.gguf, mmproj-b-f16.gguf\); give one of them as mmproj"):
        choose_mmproj(["mmproj-b-f16.gguf", "mmproj-a-f16.gguf"], "m-Q4_0.gguf")


def test_a_file_beside_it_or_above_it_in_the_hubs_cache(tmp_path):
    top = tmp_path / "models--org--m" / "snapshots" / "0123"
    model = top / "Q4" / "m.gguf"
    model.parent.mkdir(parents=True)
    for path in (model, top / "mmproj-F16.gguf", tmp_path / "mmproj-other.gguf"):
        path.touch()
    assert find_mmproj(model, "auto").path == top / "mmproj-F16.gguf"
    plain = tmp_path / "plain" / "m.gguf"
    plain.parent.mkdir()
    plain.touch()
    assert find_mmproj(plain, "auto").path is None, "a folder above it belongs to others"
    assert "give one (mmproj)" in find_mmproj(plain, "auto").reason
    assert find_mmproj(model, "none").path is None
    assert find_mmproj(plain, str(tmp_path / "mmproj-other.gguf")).path == tmp_path / "mmproj-other.gguf"
    with pytest.raises(ModelLoadError, match="mmproj: there is no file .*none.gguf"):
        find_mmproj(plain, str(tmp_path / "none.gguf"))


TEXTS = {
    "gemma3": ("gemma3", "Gemma3ForCausalLM"),
    "qwen2vl_merger": ("qwen2vl", "Qwen2ForCausalLM"),
    "qwen2.5vl_merger": ("qwen2vl", "Qwen2ForCausalLM"),
    "qwen3vl_merger": ("qwen3vl", "Qwen3ForCausalLM"),
    "idefics3": ("llama", "LlamaForCausalLM"),
    "pixtral": ("llama", "LlamaForCausalLM"),
    "internvl": ("qwen2", "Qwen2ForCausalLM"),
}
KEYS = {
    "has_vision_encoder": True, "use_gelu": True, "vision.image_size": 224, "vision.patch_size": 14,
    "vision.embedding_length": 64, "vision.feed_forward_length": 96, "vision.block_count": 8,
    "vision.attention.head_count": 4, "vision.attention.layer_norm_epsilon": 1e-6,
    "vision.image_mean": array("f", [0.48145466, 0.4578275, 0.40821073]), "vision.image_std": array("f", [0.5] * 3),
    "vision.n_wa_pattern": 4, "vision.projector.scale_factor": 4,
}  # fmt: skip
MORE = (
    "vision.preproc_image_size", "vision.preproc_min_tiles", "vision.preproc_max_tiles", "vision.image_min_pixels",
    "vision.image_max_pixels", "vision.window_size", "vision.spatial_merge_size", "vision.is_deepstack_layers",
)  # fmt: skip
HOSTILE = [
    "x", "", -1, 0, True, 1 << 63, float("nan"), float("inf"), -0.5, 1.5, array("f"), array("f", [float("nan")] * 3),
    array("i", [4, 4, 4]), array("B", [1] * 9),
]  # fmt: skip
F16 = next(each for each in FORMATS.values() if each.name == "F16")


def file_of(kind, **changes):
    """An mmproj file of a kind, with other values for some keys."""
    stated = KEYS | {"projector_type": kind} | {name.replace("__", "."): value for name, value in changes.items()}
    name, side = KINDS[kind].last if kind in KINDS else ("mm.2.weight", 0)
    shapes = {"v.blk.0.ffn_up.weight": (96, 64), name: (32, 32)}
    places = {each: TensorPlace(each, shape, F16, Path("mmproj.gguf"), 0) for each, shape in shapes.items()}
    metadata = {f"clip.{key}": value for key, value in stated.items()} | {"general.architecture": "clip"}
    return GGUFFile(Path("mmproj.gguf"), metadata, places)


def read(kind, tower, monkeypatch, wish="mmproj.gguf", **changes):
    architecture, text = TEXTS.get(kind, ("llama", "LlamaForCausalLM"))
    words = [word for each in KINDS.values() for word in each.tokens.values()]
    metadata = {
        "general.architecture": architecture,
        "tokenizer.ggml.tokens": ["a", *words],
        f"{architecture}.embedding_length": 32,
        f"{architecture}.rope.dimension_sections": array("i", [2, 3, 3, 0]),
    }
    monkeypatch.setattr(reading, "read_gguf", lambda path: tower)
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    facts = TextFacts(text, 1 << 17, 32, 16)
    return reading.read_mmproj(GGUFFile(Path("m.gguf"), metadata | changes, {}), facts, wish)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind(kind, monkeypatch):
    vision, reason = read(kind, file_of(kind), monkeypatch)
    assert reason == "" and vision.weights_file.name == "mmproj.gguf"
    assert vision.picture.image_mean == tuple(KEYS["vision.image_mean"])
    assert (vision.tower.hidden_size, vision.tower.intermediate_size, vision.tower.num_layers) == (64, 96, 8)
    if kind == "qwen2.5vl_merger":
        assert vision.tower.full_layers == (3, 7) and vision.tower.window == 8
    with pytest.raises(ModelLoadError, match="its vocabulary has no token"):
        read(kind, file_of(kind), monkeypatch, **{"tokenizer.ggml.tokens": ["a"]})


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_stands_under_a_key(kind, monkeypatch):
    for key in (*KEYS, *MORE):
        for value in HOSTILE:
            tower = file_of(kind, **{key.replace(".", "__"): value})
            try:
                read(kind, tower, monkeypatch)
            except ModelLoadError as error:
                assert str(error).startswith("mmproj.gguf: ") and len(str(error)) < 600, (key, value)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("resampler", "the projector 'resampler' is not supported in GGUF; supported are gemma3, qwen2vl_merger"),
        ("mlp", "the projector 'mlp' is not supported in GGUF"),
        (None, "the projector None is not supported"),
    ],
)
def test_other_kinds_are_refused_by_name(kind, problem, monkeypatch):
    with pytest.raises(ModelLoadError, match=problem):
        read(kind, file_of(kind), monkeypatch)
    monkeypatch.setattr(reading, "find_mmproj", lambda path, wish: Found(Path("mmproj.gguf")))
    vision, reason = read(kind, file_of(kind), monkeypatch, wish="auto")
    assert vision is None and problem in reason, "the text model is loaded alone"


def test_files_that_are_not_for_it(monkeypatch):
    other = file_of("gemma3")
    with pytest.raises(ModelLoadError, match="it is a model of 'llama', and no mmproj file"):
        read("gemma3", replace(other, metadata=other.metadata | {"general.architecture": "llama"}), monkeypatch)
    with pytest.raises(ModelLoadError, match="it has no tower for pictures"):
        read("gemma3", file_of("gemma3", has_vision_encoder=False), monkeypatch)
    name, _ = KINDS["gemma3"].last
    wide = replace(other.tensors[name], shape=(32, 64))
    with pytest.raises(ModelLoadError, match=r"its rows have 64 elements, those of m.gguf 32: it is another model's"):
        read("gemma3", replace(other, tensors=other.tensors | {name: wide}), monkeypatch)
    with pytest.raises(ModelLoadError, match="its text model is LlamaForCausalLM"):
        monkeypatch.setitem(TEXTS, "gemma3", TEXTS["idefics3"])
        read("gemma3", other, monkeypatch)
