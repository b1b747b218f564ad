"""The towers of models that see pictures, beside transformers' own, in turn: seconds for a picture, and their ratio.

    python bench/vision.py                                     four towers, a few layers of each, bfloat16
    python bench/vision.py --tower qwen2.5-vl-3b --layers 32 --threads 1

Weights are random and pictures are noise, which take the time of others. Both read one picture at a time.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # two pools that spin against each other measure nothing

import torch
from torch import nn

from lullm.config.vision.tower import read_tower
from lullm.config.vision.vision import TowerConfig
from lullm.models.vision.tower import Tower
from lullm.nn.linear import Matrix
from lullm.ops.cpu.library import absence
from lullm.ops.cpu.native import set_num_threads
from lullm.ops.selection import NATIVE_CPU_OPS, TORCH_CPU_OPS
from lullm.ops.table import Ops

# By name: the tower as its model's config.json has it, and a picture's height and width in pixels.
TOWERS = {
    "clip-l": (
        {
            "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
            "num_attention_heads": 16, "patch_size": 14, "image_size": 336, "projection_dim": 768,
        },
        (336, 336),
    ),
    "siglip-so400m": (
        {
            "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
            "num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 14, "image_size": 384,
        },
        (384, 384),
    ),
    "qwen2.5-vl-3b": (
        {
            "model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
            "out_hidden_size": 2048, "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
        },
        (476, 644),
    ),
    "pixtral": (
        {
            "model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
            "num_attention_heads": 16, "patch_size": 14, "hidden_act": "silu",
        },
        (476, 644),
    ),
}  # fmt: skip
"""LLaVA 1.5's, that of many (without Gemma 3's size), Qwen2.5-VL's of 3B, and Mistral Small 3.1's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tower", choices=TOWERS, action="append", help="may be given several times (default: all)")
    parser.add_argument("--layers", type=int, default=4, help="of the tower's; the last one has no windows")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    ops = TORCH_CPU_OPS
    if absence() is None:
        set_num_threads(args.threads)
        ops = NATIVE_CPU_OPS
    report = {name: measure_tower(name, args, ops) for name in args.tower or TOWERS}
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


@torch.inference_mode()
def measure_tower(name: str, args: argparse.Namespace, ops: Ops) -> dict[str, float]:
    data, (height, width) = TOWERS[name]
    layers = {"depth" if "depth" in data else "num_hidden_layers": args.layers}
    layers |= {"fullatt_block_indexes": [args.layers - 1]} if "fullatt_block_indexes" in data else {}
    data = data | layers
    tower = new_tower(read_tower(data, (str(data["model_type"]),), None, drops_first=False))
    for module in tower.modules():
        if isinstance(module, Matrix):
            ops.pack_weight_(module.weight)
    pixels = torch.randn(3, height, width).bfloat16()
    versions = {"lullm": lambda: tower(pixels[None], ops), "transformers": peer(data, pixels)}
    for run in versions.values():
        run()
    seconds: dict[str, list[float]] = {version: [] for version in versions}
    for _ in range(args.repeat):
        for version, run in versions.items():
            started = time.perf_counter()
            run()
            seconds[version].append(time.perf_counter() - started)
    found = {version: statistics.median(values) for version, values in seconds.items()}
    patches = height * width // tower.config.patch_size**2
    ratio = found["transformers"] / found["lullm"]
    line = ", ".join(f"{version} {value:.3f} s" for version, value in found.items())
    print(f"{name}, {patches} patches, {args.layers} layers: {line}, x{ratio:.2f}", flush=True)
    return found | {"ratio": ratio}


def new_tower(config: TowerConfig) -> Tower:
    """With random weights, in bfloat16."""
    tower = Tower(config, config.image_size, torch.bfloat16)
    for module in tower.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            values = (torch.randn(parameter.shape) * 0.02).bfloat16()
            setattr(module, name, nn.Parameter(values, requires_grad=False))
    return tower


def peer(data: dict, pixels: torch.Tensor) -> Callable[[], object]:
    """A call of transformers' tower with the same picture."""
    from transformers import AutoConfig, AutoModel

    kind, values = str(data["model_type"]), {key: value for key, value in data.items() if key != "model_type"}
    if kind != "qwen2_5_vl":
        model = AutoModel.from_config(AutoConfig.for_model(kind, **values), dtype=torch.bfloat16).eval()
        return lambda: model(pixels[None])
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
        Qwen2_5_VisionTransformerPretrainedModel,
        Qwen2_5_VLVisionConfig,
    )

    tower = Qwen2_5_VisionTransformerPretrainedModel._from_config(
        Qwen2_5_VLVisionConfig(**values), dtype=torch.bfloat16
    )
    lines, columns = (length // values["patch_size"] for length in pixels.shape[1:])
    patches = torch.randn(lines * columns, 3 * 2 * values["patch_size"] ** 2).bfloat16()  # two pictures of a film
    grid = torch.tensor([[1, lines, columns]])
    return lambda: tower(patches, grid_thw=grid)


if __name__ == "__main__":
    main()
