"""The model of a bench: one that its flags name, or dummy weights of a real model's shape."""

import argparse
import json
from pathlib import Path
from typing import Any

SHAPES = {
    "tiny": {  # no model's: every script tries itself out on it in seconds
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 8192,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
    },
    "llama-3.2-1b": {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
    },
}


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """`--model` and `--shape`."""
    parser.add_argument("--model", default="demo", help="model folder, hub id or 'demo'")
    parser.add_argument("--shape", choices=SHAPES, help="dummy weights of this shape instead of a model")


def model_options(folder: str, shape: str | None, model: str = "demo", **of_shape: Any) -> dict[str, Any]:
    """Options of `EngineConfig`. `folder`: an empty one, for the shape's config.json. `of_shape`: only with a shape."""
    if shape is None:
        return {"model": model}
    Path(folder, "config.json").write_text(json.dumps(SHAPES[shape]))
    return {"model": folder, "tokenizer": "demo", "load_format": "dummy", **of_shape}
