"""Engines over quantized checkpoints: as the same checkpoint in floating point, also asleep, updated and in shards."""

import json
import shutil

import pytest
import torch
from kit.engine.parts import arenas_of, model_of
from kit.engine.prompts import random_prompts
from kit.folder import quantized
from kit.folder.quantized import FORMATS, NATIVE
from safetensors.torch import load_file, save_file

from lullm import LLM, SamplingParams
from lullm.errors import ModelLoadError
from lullm.ops.quantized.narrow import NarrowLayout

OPTIONS = {"dtype": "float32", "max_model_len": 176, "block_size": 8}
GREEDY = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, logprobs=5)
PROMPTS = random_prompts(5, 60)


def answers(folder, **options):
    with LLM(str(folder), **OPTIONS | options) as llm:
        return answers_of(llm)


def answers_of(llm):
    """Greedy tokens, and the log-probabilities of the five likeliest, of each prompt."""
    outputs = [output.outputs[0] for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
    return [(o.token_ids, [{i: p.logprob for i, p in at.items()} for at in o.logprobs]) for o in outputs]


def tokens(found):
    return [ids for ids, _ in found]


def compare(found, expected, tolerance):
    """Log-probabilities are near until tokens differ, which a near tie may let them once."""
    num_equal = 0
    for (ids, near), (right_ids, right) in zip(found, expected, strict=True):
        for at, (token, right_token) in enumerate(zip(ids, right_ids, strict=True)):
            shared = near[at].keys() & right[at].keys()
            assert len(shared) >= 4
            assert max(abs(near[at][i] - right[at][i]) for i in shared) < tolerance
            if token != right_token:
                break
            num_equal += 1
    assert num_equal > 0.8 * 32 * len(PROMPTS)


@pytest.fixture
def written(qwen3_folder, tmp_path):
    def write(name, leave=()):
        return quantized.write(qwen3_folder, tmp_path / "q", tmp_path / "dense", FORMATS[name], leave)

    write.encoded, write.dense = tmp_path / "q", tmp_path / "dense"
    return write


@pytest.mark.parametrize("name", ["gptq 8 bits", "gptq act-order", "fp8 of Qwen"])
def test_decoded_while_it_is_read(written, name, caplog):
    """Exactly the tokens of the numbers that are stored. 21 matrices; the head is none of them."""
    written(name, leave=["layers.1.mlp", "lm_head"])
    expected = answers(written.dense)
    with caplog.at_level("INFO", logger="lullm"):
        found = answers(written.encoded)
    assert tokens(found) == tokens(expected)
    assert "18 quantized tensors" in caplog.text and "are decoded" in caplog.text


@pytest.mark.parametrize(
    "name",
    ["w8a8", "w8 tensor", "w4a16 channel", "w4a16", "w4a16 asymmetric", "awq", "gptq v1", "gptq 8 bits symmetric"],
)
def test_kept_as_it_is_stored(written, name, caplog):
    """Fused matrices too, whose parts have scales of their own. Activations of 16 bits are the only difference."""
    written(name)
    with caplog.at_level("INFO", logger="lullm"), LLM(str(written.encoded), **OPTIONS) as llm:
        found = answers_of(llm)
        size = arenas_of(llm)["weights"].used_bytes
        layouts = [module.layout for _, module in model_of(llm).named_modules() if getattr(module, "layout", None)]
    assert {layout.format for layout in layouts} == {NATIVE[name][0]} and len(layouts) == 12
    assert "12 matrices quantized as they are stored" in caplog.text and "are decoded" not in caplog.text
    with LLM(str(written.dense), **OPTIONS) as llm:
        compare(found, answers_of(llm), 3e-3)
        assert arenas_of(llm)["weights"].used_bytes > 1.7 * size


@pytest.mark.parametrize("name", ["fp8 tensor", "fp8 channel", "fp8 blocks"])
def test_floats_of_8_bits_stay_as_they_are_stored(written, name, caplog):
    """Exactly the tokens of the decoded checkpoint, from a fourth of its bytes."""
    written(name)
    with caplog.at_level("INFO", logger="lullm"), LLM(str(written.encoded), **OPTIONS) as llm:
        found = answers_of(llm)
        size = arenas_of(llm)["weights"].used_bytes
        layouts = [module.layout for _, module in model_of(llm).named_modules() if getattr(module, "layout", None)]
    assert all(isinstance(layout, NarrowLayout) for layout in layouts) and len(layouts) == 12
    assert "12 matrices quantized as they are stored" in caplog.text and "are decoded" not in caplog.text
    with LLM(str(written.dense), **OPTIONS) as llm:
        assert answers_of(llm) == found
        assert arenas_of(llm)["weights"].used_bytes > 1.7 * size


def test_a_fused_matrix_of_which_a_part_is_not_quantized_is_decoded(written):
    written("w8a8", leave=["layers.0.self_attn.k_proj", "layers.1.mlp.up_proj"])
    with LLM(str(written.encoded), **OPTIONS) as llm:
        found = answers_of(llm)
        layers = model_of(llm).model.layers
        assert layers[0].self_attn.qkv_proj.layout is None and layers[1].mlp.gate_up_proj.layout is None
        assert layers[0].self_attn.o_proj.layout.bits == 8
    compare(found, answers(written.dense), 3e-3)


def test_quantized_once_more(written):
    """quantization= stores every matrix so: bytes of a stored format go in unchanged, others are rounded once more."""
    written("w8a8")
    with LLM(str(written.encoded), **OPTIONS) as llm:
        kept = model_of(llm).model.layers[0].mlp.down_proj.weight.clone()
    with LLM(str(written.encoded), **OPTIONS, quantization="int8") as llm:
        assert torch.equal(model_of(llm).model.layers[0].mlp.down_proj.weight, kept)
        assert model_of(llm).lm_head.layout.bits == 8
    with LLM(str(written.encoded), **OPTIONS, quantization="int4") as llm:
        assert model_of(llm).model.layers[0].mlp.down_proj.layout.bits == 4
        assert answers_of(llm)


@pytest.mark.parametrize("name", ["awq", "gptq act-order", "w8a8", "fp8 channel"])
def test_sleep_and_updates(written, name):
    """Levels 1 and 2 bring back the same. A trainer pushes floating point numbers, but not into groups of integers."""
    written(name)
    with LLM(str(written.encoded), **OPTIONS, enable_sleep_mode=True) as llm:
        expected = tokens(answers_of(llm))
        for level in (1, 2):
            llm.sleep(level=level)
            llm.wake_up()
            assert tokens(answers_of(llm)) == expected
        module, part = "model.layers.1.mlp.down_proj", "weight_scale" if name in ("w8a8", "fp8 channel") else "qweight"
        stored = load_file(written.encoded / "model.safetensors")[f"{module}.{part}"]
        with pytest.raises(ModelLoadError, match=f"{module}.{part}.*take {module}.weight as floating point"):
            model_of(llm).load_weights([(f"{module}.{part}", stored)])
        weight = torch.zeros_like(load_file(written.dense / "model.safetensors")[f"{module}.weight"])
        if name == "awq":
            with pytest.raises(
                ModelLoadError, match=f"{module}.weight: it holds groups of integers.*quantization='int8'"
            ):
                model_of(llm).load_weights([(f"{module}.weight", weight)])
            assert tokens(answers_of(llm)) == expected
            return
        model_of(llm).load_weights([(f"{module}.weight", weight)])
        assert tokens(answers_of(llm)) != expected
        llm.collective_rpc("reload_weights")
        assert tokens(answers_of(llm)) == expected


def test_shards(written):
    """Parts of one matrix in different files, of which the index tells."""
    written("awq")
    expected = tokens(answers(written.encoded))
    path = written.encoded / "model.safetensors"
    tensors = load_file(path)
    path.unlink()
    files = [f"model-{i}-of-3.safetensors" for i in range(3)]
    weight_map = {name: files[number % 3] for number, name in enumerate(sorted(tensors))}
    for file in files:
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file}, written.encoded / file)
    index = written.encoded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert tokens(answers(written.encoded)) == expected
    gone = next(name for name in weight_map if name.endswith("layers.0.mlp.up_proj.qzeros"))
    index.write_text(json.dumps({"weight_map": weight_map | {gone: files[(files.index(weight_map[gone]) + 1) % 3]}}))
    with pytest.raises(ModelLoadError, match=f"missing tensor {gone}$"):
        answers(written.encoded)


def test_scales_of_an_fp8_kv_cache_beside_quantized_weights(written):
    config = written("fp8 tensor")
    stated = json.loads((written.encoded / "config.json").read_text())
    stated["quantization_config"] = config | {"kv_cache_scheme": {"type": "float", "num_bits": 8, "strategy": "tensor"}}
    (written.encoded / "config.json").write_text(json.dumps(stated))
    path = written.encoded / "model.safetensors"
    scales = {f"model.layers.{i}.self_attn.{side}_scale": torch.tensor(0.5) for i in range(3) for side in "kv"}
    save_file(load_file(path) | scales, path)
    assert tokens(answers(written.encoded)) == tokens(answers(written.dense))
    with LLM(str(written.encoded), **OPTIONS, kv_cache_dtype="fp8") as llm:
        assert answers_of(llm)
        assert model_of(llm).model.layers[0].self_attn.kv_scales.k_scale.tolist() == [0.5, 0.5]


def test_all_faults_are_named_at_once(written, tmp_path):
    written("awq")
    folder = shutil.copytree(written.encoded, tmp_path / "broken")
    tensors = load_file(folder / "model.safetensors")
    layer = "model.layers.0.mlp"
    del tensors[f"{layer}.up_proj.qzeros"]
    tensors[f"{layer}.down_proj.scales"] = tensors[f"{layer}.down_proj.scales"][:1].clone()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelLoadError) as caught:
        answers(folder)
    first, second = sorted(line.strip() for line in str(caught.value).split("\n")[1:])
    assert first.startswith(f"{layer}.down_proj.weight: scales") and "missing tensor" in second
