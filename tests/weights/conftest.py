"""A small materialised model, and checkpoints as `save_pretrained` would write them, built without transformers."""

import json

import pytest
import torch
from safetensors.torch import save_file

from lullm.arena.host import HostArena
from lullm.config.model import ModelConfig
from lullm.models.registry import build_model
from lullm.weights.materialize import materialize, weights_bytes

H, Q, KV, INNER, VOCAB = 16, 32, 16, 24, 40
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "vocab_size": VOCAB, "hidden_size": H, "intermediate_size": INNER,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
}  # fmt: skip


@pytest.fixture
def make_model():
    """`make_model(dtype=..., **config)`: materialised, in an arena of exactly its size."""

    def make(dtype=torch.float32, **changes):
        model = build_model(ModelConfig.from_dict(CONFIG | changes), dtype, 64)
        materialize(model, HostArena("weights", weights_bytes(model)))
        return model

    return make


@pytest.fixture
def checkpoint():
    """The tensors of a complete, untied Qwen3 checkpoint, by the names that transformers gives them."""
    shapes = {"model.embed_tokens.weight": (VOCAB, H), "model.norm.weight": (H,), "lm_head.weight": (VOCAB, H)}
    for layer in ("model.layers.0.", "model.layers.1."):
        shapes |= {
            layer + "input_layernorm.weight": (H,),
            layer + "post_attention_layernorm.weight": (H,),
            layer + "self_attn.q_proj.weight": (Q, H),
            layer + "self_attn.k_proj.weight": (KV, H),
            layer + "self_attn.v_proj.weight": (KV, H),
            layer + "self_attn.o_proj.weight": (H, Q),
            layer + "self_attn.q_norm.weight": (8,),
            layer + "self_attn.k_norm.weight": (8,),
            layer + "mlp.gate_proj.weight": (INNER, H),
            layer + "mlp.up_proj.weight": (INNER, H),
            layer + "mlp.down_proj.weight": (H, INNER),
        }
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def save_shards():
    """`save_shards(folder, tensors, num_shards)`: shards and their index; returns the shards' paths."""

    def save(folder, tensors, num_shards=3):
        names = sorted(tensors)
        files = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
        weight_map = {name: files[i % num_shards] for i, name in enumerate(names)}
        for file in files:
            save_file({name: tensors[name] for name in names if weight_map[name] == file}, folder / file)
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return [folder / file for file in files]

    return save
