"""gpt-oss's checkpoints as they are released: experts in MXFP4, a config.json of the first release."""

import copy
import json

import pytest
import torch
from kit.engine.parts import model_of
from kit.folder.checkpoint import write_tokenizer
from kit.folder.mxfp4 import EXPERT_MATRICES, encode_experts, quantize
from kit.model.golden import SIZES, PagedRun, assert_close, golden_logits, load_model, prompt, random_model
from safetensors.torch import save_file

from lullm import LLM, SamplingParams
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.weights.encoding.mxfp4 import MXFP4Tensor

OPTIONS = {
    "hidden_size": 64, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20,
    "vocab_size": 320, "swiglu_limit": 0.7, "max_position_embeddings": 128, "rope_theta": 150000,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 16,
        "rope_type": "yarn", "truncate": False,
    },
}  # fmt: skip
AS_RELEASED = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_act": "silu", "experts_per_token": 2,
    "initial_context_length": 4096, "router_aux_loss_coef": 0.9, "output_router_logits": False,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
        ],
        "quant_method": "mxfp4",
    },
}  # fmt: skip
EXPERTS = "model.layers.1.mlp.experts."


@pytest.fixture(scope="module")
def theirs():
    """transformers' model with the experts that MXFP4 can hold, decoded by transformers."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    model = random_model("GptOss", SIZES | OPTIONS)
    stored = encode_experts(model.state_dict())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(EXPERT_MATRICES):
                before = parameter.clone()
                packed = (stored[f"{name}_blocks"], stored[f"{name}_scales"])
                parameter.copy_(convert_moe_packed_tensors(*packed, dtype=torch.float32))
                assert 0.005 < (parameter - before).abs().mean() < 0.02, "rounded, and not wrong"
    return model


def write(folder, tensors, **changes):
    """A folder in two files; blocks and scales of one tensor are never in the same."""
    (folder / "config.json").write_text(json.dumps(SIZES | OPTIONS | AS_RELEASED | changes))
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weight_map = {name: files[name.endswith("_blocks")] for name in tensors}
    for file in files:
        save_file({name: tensors[name].contiguous() for name in tensors if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def generate(model):
    """Greedy tokens of transformers."""
    with torch.inference_mode():
        whole = model.generate(
            torch.tensor([prompt(1)]), attention_mask=torch.ones(1, len(prompt(1))), max_new_tokens=20, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return whole[0, len(prompt(1)) :].tolist()


def tokens_of(llm):
    """lullm's."""
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    return llm.generate([prompt(1)], params, use_tqdm=False)[0].outputs[0].token_ids


def test_logits(tmp_path, theirs, caplog):
    write(tmp_path, encode_experts(theirs.state_dict()))
    caplog.set_level("INFO", "lullm")
    run = PagedRun(load_model(tmp_path), TORCH_CPU_OPS, 1)
    assert_close(run.step([(0, prompt(1))]), golden_logits(theirs, prompt(1)))
    assert "6 quantized tensors" in caplog.text and "in memory they take" in caplog.text


def test_experts_stay_as_they_are_stored(tmp_path, theirs):
    """An eighth of float32 and the scales; a worker's half of an expert, where it cuts groups of 32, is decoded."""
    write(tmp_path, encode_experts(theirs.state_dict()))
    write_tokenizer(tmp_path)
    with LLM(str(tmp_path), dtype="float32", max_model_len=120) as llm:
        expert = model_of(llm).model.layers[0].mlp.experts[1]
        assert expert.gate_up_proj.weight.nbytes == 64 * 64 * (4 + 8 / 32) / 8
        assert expert.down_proj.weight.nbytes == 64 * 32 * (4 + 8 / 32) / 8
        expected = tokens_of(llm)
        assert expected == generate(theirs)
    with LLM(str(tmp_path), dtype="float32", max_model_len=120, tensor_parallel_size=2) as llm:
        assert tokens_of(llm) == expected
    with LLM(str(tmp_path), dtype="float32", max_model_len=120, quantization="int8") as llm:
        assert model_of(llm).model.layers[0].mlp.experts[1].down_proj.layout.format == 8


def test_a_scale_that_no_number_has(tmp_path, theirs):
    """NaN, and powers beyond what a product can be; numbers that are nearly nothing are nothing."""
    for exponent, expected in ((255, None), (245, None), (1, 0.0), (240, 2.0**113)):
        tensor = MXFP4Tensor(
            "x", (torch.full((1, 1, 1, 16), 0x22, dtype=torch.uint8), torch.tensor([[[exponent]]]).byte())
        )
        if expected is None:
            with pytest.raises(ModelLoadError, match="x: .*a scale that is NaN, or too large"):
                tensor.rows(33)
        else:
            assert (tensor.rows(33).decode() == expected).all()


def test_a_file_may_hold_both_forms(tmp_path, theirs):
    tensors = theirs.state_dict()
    encoded = encode_experts({name: tensor for name, tensor in tensors.items() if EXPERTS in name})
    kept = {name: tensor for name, tensor in tensors.items() if EXPERTS not in name}
    write(tmp_path, kept | encoded)
    run = PagedRun(load_model(tmp_path), TORCH_CPU_OPS, 1)
    assert_close(run.step([(0, prompt(1))]), golden_logits(theirs, prompt(1)))


def test_the_engine_sleeps_and_reads_it_again(tmp_path, theirs):
    write(tmp_path, encode_experts(theirs.state_dict()))
    write_tokenizer(tmp_path)
    expected = generate(theirs)
    with LLM(str(tmp_path), dtype="float32", max_model_len=120, enable_sleep_mode=True) as llm:
        for _ in range(2):
            assert tokens_of(llm) == expected
            llm.sleep(level=2)
            llm.wake_up()


def test_faults_are_named(tmp_path, theirs):
    tensors = encode_experts(theirs.state_dict())
    del tensors[f"{EXPERTS}gate_up_proj_scales"]
    tensors[f"{EXPERTS}down_proj_scales"] = tensors[f"{EXPERTS}down_proj_scales"][:, :-1]
    other = "model.layers.2.mlp.experts.gate_up_proj"
    for part in ("_blocks", "_scales"):
        tensors[other + part] = tensors[other + part][:3]
    write(tmp_path, tensors)
    with pytest.raises(ModelLoadError) as caught:
        load_model(tmp_path)
    first, second, third = sorted(line.strip() for line in str(caught.value).split("\n")[1:])
    assert first == f"missing tensor {EXPERTS}gate_up_proj_scales"
    assert second.startswith(f"{EXPERTS}down_proj: blocks [4, 64, 1, 16] of torch.uint8 and scales [4, 63, 1]")
    assert third == f"{other} has shape [3, 64, 64], the model's has [4, 64, 64]"


def test_config():
    data = SIZES | OPTIONS | AS_RELEASED
    config = ModelConfig.from_dict(data)
    assert config.dtype == "bfloat16", "of what the files hold beside MXFP4, where the config.json says nothing"
    assert ModelConfig.from_dict(data | {"dtype": "float32"}).dtype == "float32"
    assert config.unknown_keys == ()
    with pytest.raises(ModelLoadError, match="quant_method 'gptq'.*only mxfp4"):
        ModelConfig.from_dict(data | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    llama = {"architectures": ["LlamaForCausalLM"], "quantization_config": AS_RELEASED["quantization_config"]}
    with pytest.raises(ModelLoadError, match="quant_method 'mxfp4'.*not supported for this"):
        ModelConfig.from_dict(SIZES | llama)


def test_an_update_replaces_the_experts_of_a_layer(tmp_path, theirs):
    """A trainer pushes the stacked tensors, in floating point; the halves of an encoded one are refused.

    What is pushed is rounded to what the matrices hold.
    """
    write(tmp_path, encode_experts(theirs.state_dict()))
    write_tokenizer(tmp_path)
    changed = copy.deepcopy(theirs)
    drawn = random_model("GptOss", SIZES | OPTIONS, seed=3).state_dict()
    pushed = {name: tensor for name, tensor in drawn.items() if EXPERTS in name}
    assert len(pushed) == 4
    for name in (name for name in pushed if name.endswith(EXPERT_MATRICES)):
        blocks, scales = quantize(pushed[name])
        pushed[name] = MXFP4Tensor(name, (blocks, scales)).decode()
        pushed[name] = pushed[name].float().contiguous()
    changed.load_state_dict(pushed, strict=False)
    expected = generate(changed)
    assert expected != generate(theirs)
    with LLM(str(tmp_path), dtype="float32", max_model_len=120) as llm:
        assert tokens_of(llm) == generate(theirs)
        llm.update_weights(list(pushed.items()))
        llm.reset_prefix_cache()
        assert tokens_of(llm) == expected
        with pytest.raises(ModelLoadError, match="down_proj_blocks: alone it is no weight; take .*down_proj as"):
            llm.update_weights([(f"{EXPERTS}down_proj_blocks", torch.zeros(4, 64, 1, 16, dtype=torch.uint8))])
        assert tokens_of(llm) == expected
