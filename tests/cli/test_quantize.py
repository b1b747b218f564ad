"""`lullm quantize`: the copy starts with the same bytes as the original quantized at its start."""

import json

import pytest
import torch
from kit.engine.parts import model_of
from kit.folder import mxfp4, quantized
from kit.folder.checkpoint import write_checkpoint
from kit.folder.quantized import FORMATS
from kit.folder.sentence import write_modules, write_score
from kit.model.golden import SIZES, random_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from lullm import LLM, SamplingParams
from lullm.cli.main import USER_ERROR, main
from lullm.config.model import ModelConfig
from lullm.weights.encoding import export

GREEDY = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
OPTIONS = {"dtype": "bfloat16", "max_model_len": 64}


def parameters(folder, **options):
    with LLM(str(folder), **OPTIONS | options) as llm:
        return {name: parameter.clone() for name, parameter in model_of(llm).named_parameters()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_same_bytes(tmp_path, capsys, monkeypatch, quantization, family):
    """In several shards; tied (llama) and untied; inner sizes that fill no block and no word."""
    source = write_checkpoint(tmp_path / "in", family, tie_word_embeddings=family == "llama", intermediate_size=90,
                              num_hidden_layers=2)  # fmt: skip
    monkeypatch.setattr(export, "_SHARD_BYTES", 40_000)
    assert main(["quantize", str(source), str(tmp_path / "out"), "--quantization", quantization]) == 0
    assert f"{tmp_path / 'out'}: weights of" in capsys.readouterr().out
    files = {path.name for path in (tmp_path / "out").iterdir()}
    shards = {name for name in files if name.endswith(".safetensors")}
    assert len(shards) > 1 and files - shards == {"config.json", "generation_config.json", "tokenizer.json",
                                                  "tokenizer_config.json", "model.safetensors.index.json"}  # fmt: skip
    assert not (tmp_path / "out.partial").exists()
    assert_equal(parameters(tmp_path / "out"), parameters(source, quantization=quantization))


def test_int8_is_read_by_compressed_tensors(tmp_path, qwen3_folder):
    """Its decompression gives the numbers that lullm computes with; embedding and head are in floating point."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    assert main(["quantize", str(qwen3_folder), str(tmp_path / "out"), "--quantization", "int8"]) == 0
    stated = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig(**stated)
    assert config.ignore == ["lm_head", "model.embed_tokens"]
    [path] = (tmp_path / "out").glob("*.safetensors")
    tensors, original = load_file(path), load_file(qwen3_folder / "model.safetensors")
    compressor = BaseCompressor.get_value_from_registry(config.format)
    for module in ("self_attn.q_proj", "mlp.down_proj"):
        name = f"model.layers.1.{module}"
        parts = {part: tensors[f"{name}.{part}"] for part in ("weight_packed", "weight_scale", "weight_shape")}
        found = compressor.decompress(parts, config.config_groups["group_0"])["weight"]
        weight = original[f"{name}.weight"]
        assert (found - weight).abs().max() <= weight.abs().amax(1).max() / 254
    assert torch.equal(tensors["lm_head.weight"], original["lm_head.weight"])


def test_files_are_smaller(tmp_path, qwen3_folder):
    sizes = {}
    for quantization in ("int8", "int4"):
        out = tmp_path / quantization
        assert main(["quantize", str(qwen3_folder), str(out), "--quantization", quantization]) == 0
        sizes[quantization] = sum(path.stat().st_size for path in out.glob("*.safetensors"))
        assert ModelConfig.from_folder(out).encoding is not None
    original = (qwen3_folder / "model.safetensors").stat().st_size  # float32
    assert sizes["int8"] < 0.5 * original and sizes["int4"] < 0.25 * original


def test_it_sleeps_and_wakes(tmp_path, qwen3_folder):
    assert main(["quantize", str(qwen3_folder), str(tmp_path / "out"), "--quantization", "int4"]) == 0
    with LLM(str(tmp_path / "out"), **OPTIONS, enable_sleep_mode=True) as llm:
        before = {name: parameter.clone() for name, parameter in model_of(llm).named_parameters()}
        llm.sleep(level=2)
        llm.wake_up()
        assert_equal(dict(model_of(llm).named_parameters()), before)


def test_refusals(tmp_path, qwen3_folder, capsys, monkeypatch):
    out = str(tmp_path / "out")
    assert main(["quantize", str(qwen3_folder), str(tmp_path), "--quantization", "int4"]) == USER_ERROR
    assert "exists; name a folder" in capsys.readouterr().err
    assert main(["quantize", str(qwen3_folder), out, "--quantization", "int4"]) == 0
    assert main(["quantize", out, out + "2", "--quantization", "int8"]) == USER_ERROR
    assert "is such a copy already; start it as it is" in capsys.readouterr().err
    (tmp_path / "model.gguf").touch()
    assert main(["quantize", str(tmp_path / "model.gguf"), out + "2", "--quantization", "int8"]) == USER_ERROR
    assert "is a GGUF file; start it as it is" in capsys.readouterr().err
    broken = write_checkpoint(tmp_path / "in", "qwen3", num_hidden_layers=1)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(tensors, broken / "model.safetensors")
    assert main(["quantize", str(broken), out + "2", "--quantization", "int8"]) == USER_ERROR
    assert "model.layers.0.mlp.up_proj.weight: a weight is not finite" in capsys.readouterr().err

    def full(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(export, "save_file", full)
    assert main(["quantize", str(qwen3_folder), out + "2", "--quantization", "int8"]) == USER_ERROR
    assert "cannot be written: I/O error: No space left on device" in capsys.readouterr().err
    assert not (tmp_path / "out2.partial").exists() and not (tmp_path / "out2").exists()


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize(
    "name", ["fp8 of Mistral", "fp8 blocks", "awq", "gptq act-order", "w8a8", "w4a16 channel", "w4a16"]
)
def test_of_quantized_checkpoints(tmp_path, qwen3_folder, name, quantization):
    """As a start with --quantization: integers that the format has stay as they are, others are rounded once more."""
    quantized.write(qwen3_folder, tmp_path / "in", tmp_path / "dense", FORMATS[name], ["lm_head"])
    assert main(["quantize", str(tmp_path / "in"), str(tmp_path / "out"), "--quantization", quantization]) == 0
    assert_equal(parameters(tmp_path / "out"), parameters(tmp_path / "in", quantization=quantization))
    if (name, quantization) == ("fp8 blocks", "int4"):
        with (
            LLM(str(tmp_path / "in"), **OPTIONS, quantization=quantization) as a,
            LLM(str(tmp_path / "out"), **OPTIONS) as b,
        ):
            [first], [second] = (llm.generate("a text", GREEDY, use_tqdm=False)[0].outputs for llm in (a, b))
        assert first.token_ids == second.token_ids


def test_stacked_experts_are_refused(tmp_path, capsys):
    sizes = {"vocab_size": 320, "num_hidden_layers": 1, "intermediate_size": 64, "hidden_size": 64}
    random_model("GptOss", SIZES | sizes | {"num_local_experts": 4}).save_pretrained(tmp_path / "in")
    path, config = tmp_path / "in" / "model.safetensors", tmp_path / "in" / "config.json"
    save_file(mxfp4.encode_experts(load_file(path)), path)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}))
    assert main(["quantize", str(tmp_path / "in"), str(tmp_path / "out"), "--quantization", "int8"]) == USER_ERROR
    assert "several in one, which a quantized copy cannot; start it with --quant" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_models_that_pool(tmp_path, quantization):
    """The matrix of labels stays in floating point; the folders that modules.json names come along."""
    embeds = write_checkpoint(tmp_path / "embeds", "qwen3", num_hidden_layers=2)
    write_modules(embeds, "mean_tokens", normalize=True)
    scores = write_checkpoint(tmp_path / "scores", "qwen3", num_hidden_layers=2)
    write_score(scores)
    for source in (embeds, scores):
        out = tmp_path / f"{source.name}-small"
        assert main(["quantize", str(source), str(out), "--quantization", quantization]) == 0
        assert_equal(parameters(out), parameters(source, quantization=quantization))
        with LLM(str(source), **OPTIONS, quantization=quantization) as a, LLM(str(out), **OPTIONS) as b:
            [first], [second] = (llm.encode("a text") for llm in (a, b))
        assert first.outputs.data == second.outputs.data


def test_files_are_for_all_readers(tmp_path, qwen3_folder):
    """safetensors made a file that its owner alone could read."""
    assert main(["quantize", str(qwen3_folder), str(tmp_path / "out"), "--quantization", "int8"]) == 0
    modes = {path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert len(modes) == 1 and modes.pop() & 0o400


def test_what_a_killed_run_left_is_named(tmp_path, qwen3_folder, capsys):
    (tmp_path / "out.partial").mkdir()
    assert main(["quantize", str(qwen3_folder), str(tmp_path / "out"), "--quantization", "int8"]) == USER_ERROR
    assert "out.partial is left from a run that was cut short" in capsys.readouterr().err
    assert (tmp_path / "out.partial").exists()
