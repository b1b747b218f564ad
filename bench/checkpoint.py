"""A checkpoint of random weights in one of the shapes of `bench/throughput.py`, as people download them.

python bench/checkpoint.py qwen3-0.6b DIR      # needs transformers; 1.2 GB
python bench/checkpoint.py qwen3-0.6b DIR --fading 4     # its first 4 layers are a good draft model of it

The tokenizer is the demo model's, so tokens beyond it cannot be decoded; the benchmarks send ids below.
"""

import argparse
import shutil
from pathlib import Path

from shape import SHAPES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fading", type=int, help="layers behind so many add a fiftieth of what they would")
    args = parser.parse_args()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from lullm.weights.folder import DEMO_FOLDER

    torch.manual_seed(0)
    shape = dict(SHAPES[args.shape])
    (architecture,) = shape.pop("architectures")
    config = AutoConfig.for_model(architecture.removesuffix("ForCausalLM").lower(), **shape)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if args.fading:
        with torch.no_grad():
            for layer in model.model.layers[args.fading :]:
                layer.self_attn.o_proj.weight.mul_(0.02)
                layer.mlp.down_proj.weight.mul_(0.02)
    model.save_pretrained(args.folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_FOLDER / name, args.folder)
    print(f"{args.folder}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f} million parameters")


if __name__ == "__main__":
    main()
