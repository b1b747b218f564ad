"""Quantized weights in a whole engine: less memory, nearly the same logits, and nothing else changes any token."""

import pytest
import torch
from kit.engine.parts import arenas_of, model_of, ops_of, use_ops
from kit.engine.prompts import random_prompts
from safetensors.torch import load_file, save_file

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError, ModelLoadError, WakeUpError
from lullm.ops.quantized.weight import dequantize
from lullm.ops.selection import REFERENCE_OPS, TORCH_CPU_OPS

OPTIONS = {"dtype": "float32", "max_model_len": 176, "block_size": 8}
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
PROMPTS = random_prompts(12, 100)
FORMATS = pytest.mark.parametrize("quantization", ["int8", "int4"])


def tokens(llm):
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def weights_of(llm):
    return {name: parameter.clone() for name, parameter in model_of(llm).named_parameters()}


def arena_bytes(llm):
    return arenas_of(llm)["weights"].used_bytes


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    found = {}
    for quantization in ("int8", "int4"):
        with LLM(str(qwen3_folder), **OPTIONS, quantization=quantization) as llm:
            found[quantization] = tokens(llm)
    return found


@pytest.mark.half
@FORMATS
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 7, "max_num_seqs": 7},
        {"max_num_batched_tokens": 1, "max_num_seqs": 1},
        {"enable_prefix_caching": False},
        {"num_gpu_blocks_override": 22, "preemption_mode": "recompute"},
        {"num_gpu_blocks_override": 22, "preemption_mode": "swap"},
    ],
    ids=str,
)
def test_batching_and_preemption_change_nothing(qwen3_folder, expected, quantization, options):
    with LLM(str(qwen3_folder), **OPTIONS, quantization=quantization, **options) as llm:
        assert tokens(llm) == expected[quantization]
        if "num_gpu_blocks_override" in options:
            assert llm.llm_engine.stats().num_preemptions > 0


@FORMATS
def test_all_versions_of_the_ops_agree(qwen3_folder, expected, quantization, monkeypatch):
    for ops in (REFERENCE_OPS, TORCH_CPU_OPS):
        use_ops(monkeypatch, ops)
        with LLM(str(qwen3_folder), **OPTIONS, quantization=quantization) as llm:
            found = tokens(llm)
        pairs = [(a, b) for ours, theirs in zip(found, expected[quantization], strict=True)
                 for a, b in zip(ours, theirs, strict=True)]  # fmt: skip
        # x rounded to 16 bits turns a near tie now and then, and what follows is then another text.
        assert sum(a == b for a, b in pairs) / len(pairs) > 0.9


def test_weights_take_less_memory(qwen3_folder):
    sizes = {}
    for quantization in (None, "int8", "int4"):
        with LLM(str(qwen3_folder), dtype="bfloat16", max_model_len=64, quantization=quantization) as llm:
            sizes[quantization] = arena_bytes(llm)
            parameters = model_of(llm).named_parameters()
            kinds = {name: parameter.dtype for name, parameter in parameters}
        is_matrix = [dtype == torch.uint8 for name, dtype in kinds.items() if "norm" not in name]
        assert all(is_matrix) if quantization else not any(is_matrix)
        assert all(dtype == torch.bfloat16 for name, dtype in kinds.items() if "norm" in name)
    # Layers in 8 or 4.5 bits for 16, embedding and head in 8, and 4 bytes a row, which are many beside 64 inputs.
    assert sizes["int8"] / sizes[None] == pytest.approx(0.5, abs=0.06)
    assert sizes["int4"] / sizes[None] == pytest.approx(0.38, abs=0.06)


@FORMATS
@pytest.mark.parametrize("level", [1, 2])
def test_sleep_brings_the_same_bytes_back(qwen3_folder, expected, quantization, level):
    with LLM(str(qwen3_folder), **OPTIONS, quantization=quantization, enable_sleep_mode=True) as llm:
        before = weights_of(llm)
        llm.sleep(level)
        llm.wake_up()
        after = weights_of(llm)
        assert all(torch.equal(after[name], before[name]) for name in before)
        assert tokens(llm) == expected[quantization]


def test_another_checkpoint_at_wake_up_is_noticed(tmp_path, qwen3_folder):
    folder = copy_of(qwen3_folder, tmp_path)
    with LLM(str(folder), **OPTIONS, quantization="int4", enable_sleep_mode=True) as llm:
        llm.sleep(1)
        change(folder, "model.layers.1.mlp.up_proj.weight", lambda tensor: -tensor)
        with pytest.raises(WakeUpError, match="gate_up_proj"):
            llm.wake_up()


@FORMATS
def test_an_update_quantizes_into_its_rows_only(qwen3_folder, expected, quantization):
    name = "model.layers.1.self_attn.k_proj.weight"
    tensor = load_file(qwen3_folder / "model.safetensors")[name]
    with LLM(str(qwen3_folder), **OPTIONS, quantization=quantization) as llm:
        before = weights_of(llm)
        llm.update_weights([(name, -tensor.bfloat16())])
        changed = weights_of(llm)
        fused = "model.layers.1.self_attn.qkv_proj.weight"
        assert [key for key in before if not torch.equal(before[key], changed[key])] == [fused]
        layer = model_of(llm).get_submodule(fused.removesuffix(".weight"))
        q_size, k_size, _ = layer.part_sizes
        rows = dequantize(before[fused], layer.layout), dequantize(changed[fused], layer.layout)
        is_same = (rows[0] == rows[1]).all(dim=1)
        assert not is_same[q_size : q_size + k_size].any()
        assert is_same[:q_size].all() and is_same[q_size + k_size :].all()
        assert tokens(llm) != expected[quantization]
        llm.update_weights([(name, tensor)])
        assert all(torch.equal(before[key], value) for key, value in weights_of(llm).items())
        assert tokens(llm) == expected[quantization]


@FORMATS
def test_an_update_that_is_not_finite_changes_nothing(qwen3_folder, quantization):
    with LLM(str(qwen3_folder), **OPTIONS, quantization=quantization) as llm:
        before = weights_of(llm)
        bad = torch.full((64, 128), float("nan"))
        with pytest.raises(ModelLoadError, match="down_proj.weight: a weight is not finite"):
            llm.update_weights([("model.layers.0.mlp.down_proj.weight", bad)])
        assert all(torch.equal(before[key], value) for key, value in weights_of(llm).items())


def test_a_checkpoint_that_is_not_finite_is_refused(tmp_path, qwen3_folder):
    folder = copy_of(qwen3_folder, tmp_path)
    change(folder, "model.layers.2.self_attn.v_proj.weight", lambda tensor: tensor / 0)
    with pytest.raises(ModelLoadError, match="layers.2.self_attn.qkv_proj.weight: a weight is not finite"):
        LLM(str(folder), **OPTIONS, quantization="int8")


@pytest.mark.parametrize("value", ["int5", "fp8", "awq", 8, True])
def test_unknown_formats_are_refused(value):
    with pytest.raises(ConfigError, match="quantization must be one of None, int8, int4"):
        LLM("demo", quantization=value)


@FORMATS
def test_dummy_weights_are_those_of_the_model_in_full(qwen3_folder, quantization):
    options = {**OPTIONS, "load_format": "dummy"}
    with LLM(str(qwen3_folder), **options) as llm:
        wanted = {}
        for name, layer in model_of(llm).named_modules():
            if getattr(layer, "layout", 0) is None and layer.weight is not None:
                weight = layer.weight.data.clone()
                ops_of(llm).unpack_weight_(weight)
                wanted[name] = weight
    with LLM(str(qwen3_folder), **options, quantization=quantization) as llm:
        for name, weight in wanted.items():
            layer = model_of(llm).get_submodule(name)
            error = (dequantize(layer.weight, layer.layout) - weight).norm() / weight.norm()
            assert error < (0.01 if layer.layout.bits == 8 else 0.1)
            assert layer.layout.bits == (8 if quantization == "int8" or "proj" not in name else 4)


@pytest.mark.parametrize(("quantization", "dtype"), [("int8", "float32"), ("int4", "bfloat16"), ("int8", "float16")])
def test_the_demo_model_still_answers(quantization, dtype):
    questions = ["What is 17 + 25?", "What is the capital of France?"]
    with LLM("demo", dtype=dtype, quantization=quantization, max_model_len=64) as llm:
        conversations = [[{"role": "user", "content": question}] for question in questions]
        outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
        texts = [output.outputs[0].text for output in outputs]
    assert "42" in texts[0] and "Paris" in texts[1]


def copy_of(folder, target):
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def change(folder, name, function):
    checkpoint = load_file(folder / "model.safetensors")
    checkpoint[name] = function(checkpoint[name])
    save_file(checkpoint, folder / "model.safetensors", metadata={"format": "pt"})
