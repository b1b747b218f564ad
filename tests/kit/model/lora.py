"""Random LoRA adapters in PEFT's form, and the checkpoints that they are merged into."""

import json
import re
import shutil

import torch
from safetensors.torch import load_file, save_file

ALL = r"\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)\.weight$"


def write_adapter(folder, base, seed=0, rank=4, alpha=8.0, targets=ALL, size=0.3, transposed=(), **settings):
    """An adapter of the base's matrices whose names match `targets`; `transposed`: those that it has as [in, out]."""
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(base / "model.safetensors")
    tensors = {}
    for name, weight in weights.items():
        if re.search(targets, name):
            num_outputs, num_inputs = reversed(weight.shape) if name.endswith(tuple(transposed)) else weight.shape
            own = settings.get("rank_pattern", {}).get(name.split(".")[-2], rank)
            at = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{at}.lora_A.weight"] = size * torch.randn(own, num_inputs, generator=generator)
            tensors[f"{at}.lora_B.weight"] = size * torch.randn(num_outputs, own, generator=generator)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    write_settings(folder, r=rank, lora_alpha=alpha, **settings)
    return folder


def write_settings(folder, **settings):
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "lora_dropout": 0.1, "use_dora": False}
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))


def merged(folder, base, adapter, transposed=()):
    """The base with the adapter in its weights, by the definition: W + alpha / r * B A."""
    settings = json.loads((adapter / "adapter_config.json").read_text())
    weights, tensors = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name in [name for name in tensors if "lora_A" in name]:
        a, b = tensors[name].double(), tensors[name.replace("lora_A", "lora_B")].double()
        own = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        alpha = settings.get("alpha_pattern", {}).get(own.split(".")[-1], settings["lora_alpha"])
        factor = alpha / (len(a) ** 0.5 if settings.get("use_rslora") else len(a))
        change = factor * (b @ a)
        own += ".weight"
        weights[own] = (weights[own] + (change.T if own.endswith(tuple(transposed)) else change)).to(weights[own].dtype)
    shutil.copytree(base, folder)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder
