"""The row of the table: a whole model over it gives what it gives over the golden row."""

import subprocess
import sys

import torch

from lullm.config.model import ModelConfig
from lullm.models.registry import build_model
from lullm.nn.context import StepContext
from lullm.ops.attention_layout import AttentionLayout
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.selection import REFERENCE_OPS
from lullm.ops.triton.device import launch_device
from lullm.ops.triton.table import GATHERED_OPS, TRITON_OPS

DEVICE = launch_device()


def test_a_model(monkeypatch):
    """A prompt, then two sequences at once, one of which goes on: hidden states and the cache are the same."""
    config = ModelConfig.from_dict(
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": 50,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 64,
            "torch_dtype": "float32",
        }
    )
    steps = [
        ([7], [7], [[2, 5, 0]], [8, 9, 10, 11, 20, 21, 22], list(range(7))),
        ([1, 3], [8, 3], [[2, 5, 0], [1, 0, 0]], [23, 4, 5, 6], [7, 0, 1, 2]),
    ]
    found = []
    for ops, device in ((REFERENCE_OPS, torch.device("cpu")), (TRITON_OPS, DEVICE), (GATHERED_OPS, DEVICE)):
        torch.manual_seed(0)
        model = build_model(config, torch.float32, 64)
        model = model.to_empty(device=device) if device.type != "cpu" else model.to_empty(device="cpu")
        for parameter in model.parameters():
            parameter.data.copy_(torch.randn(parameter.shape) * 0.3)
        reference = build_model(config, torch.float32, 64)
        model.model.rotaries[0].cos_sin_cache.copy_(reference.model.rotaries[0].cos_sin_cache)
        caches = [LayerCache(*torch.zeros(2, 6, 4, 2, 8, device=device)) for _ in range(2)]
        outputs = []
        with torch.inference_mode():
            for query_lens, context_lens, tables, slots, positions in steps:
                layout = AttentionLayout(query_lens, context_lens, torch.tensor(tables), torch.tensor(slots), 4)
                token_ids = torch.arange(3, 3 + sum(query_lens), device=device)
                positions = torch.tensor(positions, device=device)
                placed = DeviceLayout.of(layout, device, ops.index_dtype, ops.semaphores_per_span)
                hidden = model(token_ids, StepContext(positions, (ops.prepare_attention(placed),), caches, ops))
                outputs.append(model.compute_logits(hidden, ops).cpu())
        found.append([*outputs, *(side.cpu() for cache in caches for side in cache.tensors)])
    for other in found[1:]:
        for actual, expected in zip(other, found[0], strict=True):
            torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)


def test_the_cpu_path_loads_no_triton():
    code = "import sys; import lullm.ops.selection as s; s.select_ops('cpu'); sys.exit('triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
