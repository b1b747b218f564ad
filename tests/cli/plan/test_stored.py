"""`lullm plan` of quantized checkpoints: an engine's bytes, from the files and from the config alone."""

import json
import shutil

import pytest
from kit.folder import mxfp4, quantized
from kit.folder.checkpoint import write_checkpoint, write_tokenizer
from kit.folder.gguf_files import FORMATS as BLOCKS
from kit.folder.gguf_files import write_gguf
from kit.model.golden import SIZES, random_model
from kit.worker.threads import use_threads
from safetensors.torch import load_file, save_file

from lullm import LLM
from lullm.cli.main import main
from lullm.cli.plan.layout import Devices, Layout, Planner
from lullm.cli.plan.model import read_model
from lullm.cli.plan.roofline import Machine, plan
from lullm.units import GIB
from lullm.weights.folder import resolve_model

MACHINE = Machine(4 * GIB, 20e9, 1e12)
OPTIONS = {"max_model_len": 64, "num_gpu_blocks_override": 16}


def planned(path, quantization=None):
    return plan(read_model(str(path)), MACHINE, 64, 4, "auto", quantization)


def engine_bytes(path, **options):
    with LLM(str(path), **OPTIONS, **options) as llm:
        executor = llm.llm_engine.model_executor
        workers = getattr(executor, "workers", None) or [executor.driver_worker]
        return max(worker.loaded.arena.used_bytes for worker in workers)


def alone(folder, tmp_path):
    """A folder with the config.json and nothing else."""
    (tmp_path / "alone").mkdir(exist_ok=True)
    shutil.copy(folder / "config.json", tmp_path / "alone")
    return tmp_path / "alone"


def written(tmp_path, name, leave=("lm_head",)):
    source = write_checkpoint(tmp_path / "in", "qwen3", hidden_size=128, intermediate_size=192, head_dim=32,
                              num_hidden_layers=2)  # fmt: skip
    quantized.write(source, tmp_path / "q", tmp_path / "dense", quantized.FORMATS[name], leave)
    return tmp_path / "q"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        *(("fp8 of Mistral", "fp8"), ("fp8 of Meta", "fp8"), ("fp8 blocks", "compressed-tensors"), ("awq", "awq")),
        *(("gptq v1", "gptq"), ("gptq rows", "gptq"), ("gptq act-order", "gptq"), ("w8a8", "compressed-tensors")),
        *(("w4a16", "compressed-tensors"), ("w8 asymmetric", "compressed-tensors")),
    ],
)
def test_quantized_folders(tmp_path, name, word):
    """FP8 was counted as bfloat16, and the others, too."""
    folder = written(tmp_path, name)
    expected = engine_bytes(folder)
    for each in (folder, alone(folder, tmp_path)):
        found = planned(each)
        assert found.weights == word and found.weights_bytes == pytest.approx(expected, rel=0.02)
    for quantization in ("int8", "int4"):
        assert planned(folder, quantization).weights_bytes == engine_bytes(folder, quantization=quantization)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_copies_by_lullm(tmp_path, quantization):
    source = write_checkpoint(tmp_path / "in", "qwen3")
    assert main(["quantize", str(source), str(tmp_path / "q"), "--quantization", quantization]) == 0
    expected = engine_bytes(tmp_path / "q")
    for each in (tmp_path / "q", alone(tmp_path / "q", tmp_path)):
        found = planned(each)
        assert (found.weights, found.weights_bytes) == (quantization, expected)


def test_mxfp4(tmp_path):
    sizes = {"vocab_size": 320, "num_hidden_layers": 1, "intermediate_size": 64, "max_position_embeddings": 256}
    sizes |= {"num_local_experts": 4, "num_experts_per_tok": 2, "hidden_size": 64}
    random_model("GptOss", SIZES | sizes).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    save_file(mxfp4.encode_experts(load_file(tmp_path / "model.safetensors")), tmp_path / "model.safetensors")
    stated = json.loads((tmp_path / "config.json").read_text())
    stated |= {"quantization_config": {"quant_method": "mxfp4"}, "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    expected = engine_bytes(tmp_path)
    for each in (tmp_path, alone(tmp_path, tmp_path)):
        assert (planned(each).weights, planned(each).weights_bytes) == ("mxfp4", expected)


@pytest.mark.parametrize("block", [BLOCKS.Q8_0, BLOCKS.Q4_K, BLOCKS.F16])
def test_gguf(tmp_path, block):
    sizes = {"vocab_size": 320, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 1}
    random_model("Qwen3", SIZES | {"max_position_embeddings": 256} | sizes).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    write_gguf(tmp_path / "model.gguf", tmp_path, "Qwen3", block, pre="gpt-2")
    path = tmp_path / "model.gguf"
    found = planned(path)
    assert found.weights == ("float16" if block == BLOCKS.F16 else block.name)
    assert found.weights_bytes == engine_bytes(path)
    assert planned(path, "int4").weights_bytes == engine_bytes(path, quantization="int4")


@pytest.mark.parametrize("name", ["fp8 blocks", "awq"])
def test_shares(tmp_path, monkeypatch, name):
    folder = written(tmp_path, name)
    devices = Devices(2, MACHINE, 10e9, 1e-5)
    found = Planner(read_model(str(folder)), None, "auto").plan(Layout(2, 1, 1), devices, 64, 4)
    use_threads(monkeypatch)
    assert found.weights_bytes == engine_bytes(folder, tensor_parallel_size=2)


LAYOUTS = pytest.mark.parametrize("layout", [Layout(2, 1, 1), Layout(1, 2, 1), Layout(2, 2, 1)], ids=str)


def check_layout(path, layout, monkeypatch, **options):
    """Of the fullest worker."""
    sizes = {"tensor_parallel_size": layout.tensor, "pipeline_parallel_size": layout.pipeline}
    found = Planner(read_model(str(path)), None, "auto").plan(layout, Devices(4, MACHINE, 10e9, 1e-5), 64, 4)
    use_threads(monkeypatch)
    assert found.weights_bytes == pytest.approx(engine_bytes(path, **sizes, **options), rel=0.02)


@LAYOUTS
@pytest.mark.parametrize("block", [BLOCKS.Q8_0, BLOCKS.Q4_K], ids=lambda block: block.name)
def test_shares_and_stages_of_a_gguf_file(tmp_path, monkeypatch, layout, block):
    sizes = {"vocab_size": 320, "hidden_size": 512, "intermediate_size": 1024, "head_dim": 128, "num_hidden_layers": 3}
    random_model("Qwen3", SIZES | {"max_position_embeddings": 256} | sizes).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    write_gguf(tmp_path / "model.gguf", tmp_path, "Qwen3", block, pre="gpt-2")
    check_layout(tmp_path / "model.gguf", layout, monkeypatch)


@LAYOUTS
@pytest.mark.parametrize("is_whole", [False, True], ids=["parts", "whole"])
def test_shares_and_stages_of_experts(tmp_path, monkeypatch, layout, is_whole):
    """Parts of every expert, or half as many whole ones."""
    sizes = {"vocab_size": 320, "num_hidden_layers": 3, "max_position_embeddings": 256, "num_experts": 8}
    random_model("Qwen3Moe", SIZES | sizes | {"moe_intermediate_size": 64}).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    check_layout(tmp_path, layout, monkeypatch, enable_expert_parallel=is_whole and layout.tensor > 1)


def test_on_gpus_all_is_decoded(tmp_path, capsys):
    folder = written(tmp_path, "awq")
    known = ["plan", str(folder), "--memory", "2GiB", "--bandwidth", "20", "--tflops", "1", "--json"]
    sizes = {}
    for way in (["--gpus", "1"], ["--gpus", "1", "--cpu"]):
        assert main([*known, *way]) == 0
        [found] = json.loads(capsys.readouterr().out)["plans"]
        sizes[found["weights"]] = found["weights_bytes"]
    dense = planned(tmp_path / "dense").weights_bytes
    assert sizes["bfloat16"] == pytest.approx(dense / 2, rel=0.02) and sizes["bfloat16"] > 1.5 * sizes["awq"]


def test_a_hub_id_is_found_as_elsewhere():
    assert read_model("demo").files == resolve_model("demo")
