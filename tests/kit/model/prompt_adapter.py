"""Random prompt adapters in PEFT's form."""

import json

import torch
from safetensors.torch import save_file


def write_prompt_adapter(folder, num_rows, size, seed=0, dtype=torch.float32, tensors=None, **settings):
    """An adapter of so many rows; returns them. `tensors`: in place of the rows. `settings`: what differs."""
    generator = torch.Generator().manual_seed(seed)
    rows = (0.5 * torch.randn(num_rows, size, generator=generator)).to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"prompt_embeddings": rows} if tensors is None else tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": num_rows, "token_dim": size,
        "num_transformer_submodules": 1, "num_attention_heads": 4, "num_layers": 3, "inference_mode": True,
        "prompt_tuning_init": "RANDOM", "prompt_tuning_init_text": None, "base_model_name_or_path": "tiny",
        "modules_to_save": None,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))
    return rows
