"""Dummy weights and the arena they are put in."""

import subprocess
import sys

import pytest
import torch
from kit.ready_process import ready_run

from lullm.arena.arena import ALIGNMENT
from lullm.arena.host import HostArena
from lullm.config.model import ModelConfig
from lullm.errors import CacheSizeError
from lullm.models.registry import build_model
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.weights.dummy import fill_dummy_weights
from lullm.weights.materialize import materialize, weights_bytes

CHECKSUM = """
import torch, zlib
from lullm.arena.host import HostArena
from lullm.config.model import ModelConfig
from lullm.models.registry import build_model
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.weights.dummy import fill_dummy_weights
from lullm.weights.materialize import materialize, weights_bytes
config = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
config |= dict(architectures=["LlamaForCausalLM"], num_key_value_heads=2, max_position_embeddings=64)
model = build_model(ModelConfig.from_dict(config), torch.float32, 8)
materialize(model, HostArena("weights", weights_bytes(model)))
fill_dummy_weights(model, TORCH_CPU_OPS)
print([zlib.crc32(p.numpy().tobytes()) for p in model.parameters()])
"""


def test_the_same_in_every_process():
    """A fresh one, with other hashes, and a fork of one that was there."""
    fresh = subprocess.run([sys.executable, "-c", CHECKSUM], capture_output=True, text=True, check=True, timeout=60)
    ready = ready_run([sys.executable, "-c", CHECKSUM])
    assert fresh.stdout == ready.stdout and fresh.stdout.count(",") == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_distribution(make_model, dtype):
    model = make_model(dtype, vocab_size=70_000, attention_bias=True)  # larger than the tile of noise
    fill_dummy_weights(model, TORCH_CPU_OPS)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert (parameter == 1).all()
        else:
            assert parameter.float().std().item() == pytest.approx(0.02, rel=0.5), name
    weight = model.model.embed_tokens.weight.float()
    assert weight.std().item() == pytest.approx(0.02, rel=0.01)
    assert abs(weight.mean().item()) < 1e-4
    assert len(weight.unique(dim=0)) == 70_000  # no two tokens are alike
    first, second = (layer.mlp.down_proj.weight for layer in model.model.layers)
    assert not torch.equal(first, second)


def test_seeds_differ(make_model):
    first, second = make_model(), make_model()
    fill_dummy_weights(first, TORCH_CPU_OPS, seed=0)
    fill_dummy_weights(second, TORCH_CPU_OPS, seed=1)
    assert not torch.equal(first.lm_head.weight, second.lm_head.weight)


def test_materialized_parameters_lie_in_the_arena(make_model):
    from_meta = make_model()
    model = build_model(from_meta.config, torch.bfloat16, 64)
    shapes = {name: (p.shape, p.dtype) for name, p in model.named_parameters()}
    arena = HostArena("weights", weights_bytes(model))
    materialize(model, arena)
    assert weights_bytes(model) - ALIGNMENT < arena.used_bytes <= weights_bytes(model)
    assert {name: (p.shape, p.dtype) for name, p in model.named_parameters()} == shapes
    for parameter in model.parameters():
        assert not parameter.requires_grad
        assert arena.base_address <= parameter.data_ptr() < arena.base_address + arena.used_bytes
    used = arena.used_bytes
    materialize(model, arena)  # nothing is left to do
    assert arena.used_bytes == used


def test_an_arena_too_small(make_model):
    model = build_model(make_model(vocab_size=100_000).config, torch.float32, 64)
    with pytest.raises(CacheSizeError, match="'weights' is full"):
        materialize(model, HostArena("weights", 1))


def test_dummy_models_are_finite():
    """What `load_format='dummy'` runs: activations neither die nor explode over many layers."""
    from lullm.nn.context import StepContext
    from lullm.ops.attention_layout import AttentionLayout
    from lullm.ops.cache.layer_cache import LayerCache
    from lullm.ops.device_layout import DeviceLayout

    config = ModelConfig.from_dict(
        {
            "architectures": ["Qwen3ForCausalLM"],
            "vocab_size": 300,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 24,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
        }  # fmt: skip
    )
    model = build_model(config, torch.bfloat16, 64)
    materialize(model, HostArena("weights", weights_bytes(model)))
    fill_dummy_weights(model, TORCH_CPU_OPS)
    caches = [LayerCache(*torch.zeros(2, 1, 16, 4, 16, dtype=torch.bfloat16)) for _ in range(24)]
    layout = AttentionLayout([16], [16], torch.zeros(1, 1).long(), torch.arange(16), 16)
    prepared = TORCH_CPU_OPS.prepare_attention(DeviceLayout.of(layout))
    with torch.inference_mode():
        hidden = model(torch.arange(16), StepContext(torch.arange(16), (prepared,), caches, TORCH_CPU_OPS))
        logits = model.compute_logits(hidden, TORCH_CPU_OPS)
    assert logits.isfinite().all() and 0.01 < logits.std() < 10
