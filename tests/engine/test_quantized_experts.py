"""Quantized checkpoints of families with experts: as the floating point numbers that they stand for."""

import json
import shutil

import pytest
import torch
from kit.folder import quantized
from kit.folder.checkpoint import write_tokenizer
from kit.folder.quantized import FORMATS
from kit.model.families import CASES
from kit.model.golden import SIZES, random_model, save
from safetensors.torch import load_file, save_file

from lullm import LLM, SamplingParams
from lullm.errors import ModelLoadError

OPTIONS = {"dtype": "float32", "max_model_len": 96, "block_size": 8}
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
PROMPTS = [[5, 17, 100, 4, 99], list(range(20, 60))]


def tokens(folder):
    with LLM(str(folder), **OPTIONS) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def checkpoint(folder, family, **changes):
    sizes = SIZES | {"vocab_size": 320, "max_position_embeddings": 256} | CASES[family].engine | changes
    save(random_model(family, sizes), folder)
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("family", ["Qwen3Moe", "Qwen3_5Moe", "Mellum", "Mistral4", "Gemma4", "Lfm2Moe"])
def test_experts_apart_or_stacked(tmp_path, family):
    """Released FP8 and 4-bit files hold experts apart, also those of families whose 16-bit files stack them."""
    source = checkpoint(tmp_path / "source", family)
    quantized.write(source, tmp_path / "q", tmp_path / "dense", FORMATS["fp8 tensor"])
    assert tokens(tmp_path / "q") == tokens(tmp_path / "dense")


def test_experts_stacked_by_mlx(tmp_path):
    """A module's matrices are one tensor of three dimensions, the router has 8 bits, and config.json has MLX's key."""
    source = checkpoint(tmp_path / "source", "Qwen3Moe", hidden_size=64, moe_intermediate_size=64, num_experts=4)
    stored, dense = load_file(source / "model.safetensors"), {}
    encode, encode_gate = quantized.mlx(4, 32)[1], quantized.mlx(8, 32)[1]
    packed = {}
    for name, tensor in stored.items():
        module = name.removesuffix(".weight")
        dense[name] = tensor
        if ".experts." in module:
            head, _, tail = module.partition(".experts.")
            number, part = tail.split(".")
            _, dense[name] = encode(tensor)
            if number == "0":
                whole = torch.stack([stored[f"{head}.experts.{i}.{part}.weight"] for i in range(4)])
                parts, _ = encode(whole)
                packed |= {f"{head}.switch_mlp.{part}.{suffix}": value for suffix, value in parts.items()}
        elif module.endswith(("_proj", "gate", "embed_tokens")):
            parts, dense[name] = (encode_gate if module.endswith("mlp.gate") else encode)(tensor)
            packed |= {f"{module}.{suffix}": value for suffix, value in parts.items()}
        else:
            packed[name] = tensor
    stated = {"group_size": 32, "bits": 4}
    stated |= {f"model.layers.{i}.mlp.gate": {"group_size": 32, "bits": 8} for i in range(8)} | {"lm_head": False}
    config = json.loads((source / "config.json").read_text())
    for folder, content, added in (("q", packed, {"quantization": stated}), ("dense", dense, {})):
        shutil.copytree(source, tmp_path / folder)
        save_file(content, tmp_path / folder / "model.safetensors")
        (tmp_path / folder / "config.json").write_text(json.dumps(config | added))
    with LLM(str(tmp_path / "q"), **OPTIONS, quantization=None) as llm:
        near = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in near] == tokens(tmp_path / "dense")


def test_convolutions_of_mlx_are_refused(tmp_path):
    """MLX turns them and adds to norms: what would load in silence would compute something else."""
    source = checkpoint(tmp_path / "source", "Qwen3_5")
    stored = load_file(source / "model.safetensors")
    turned = {name: part.movedim(2, 1).contiguous() if "conv1d" in name else part for name, part in stored.items()}
    save_file(turned, source / "model.safetensors")
    config = json.loads((source / "config.json").read_text()) | {"quantization": {"group_size": 64, "bits": 4}}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"conv1d.weight has shape"):
        LLM(str(source), **OPTIONS)
