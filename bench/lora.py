"""Decoding with LoRA adapters, against the same engine without, in turn: tokens per second and their ratio.

    python bench/lora.py
    python bench/lora.py --model DIR --adapters 1 --adapters 8 --rank 64

Adapters are random ones for all matrices of attention and MLPs. Streams take them in turn. Without `--model` the
weights are random, too, and the sizes those of Qwen3-0.6B.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SIZES = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 4096,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model folder with Llama's names of matrices (default: random weights)")
    parser.add_argument("--adapters", type=int, action="append", help="may be given several times (default: 1, 4)")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    from lullm import LLM, LoRARequest, SamplingParams

    with tempfile.TemporaryDirectory() as name:
        folder = Path(args.model) if args.model else write_model(Path(name) / "model")
        options = {
            "load_format": "auto" if args.model else "dummy",
            "enable_prefix_caching": False,
            "dtype": "bfloat16",
        }
        options |= {"max_model_len": 1024, "kv_cache_memory_bytes": 1 << 30}
        numbers = args.adapters or [1, 4]
        plain = LLM(str(folder), **options)
        adapting = LLM(str(folder), enable_lora=True, max_loras=max(numbers), max_lora_rank=args.rank, **options)
        loras = [
            LoRARequest(
                f"adapter-{number}", number + 1, str(write_adapter(Path(name) / str(number), folder, args.rank))
            )
            for number in range(max(numbers))
        ]
        rng = random.Random(0)
        prompts = [
            {"prompt_token_ids": [rng.randrange(1000) for _ in range(args.input_len)]} for _ in range(args.streams)
        ]
        params = SamplingParams(temperature=0.0, max_tokens=args.output_len, ignore_eos=True)

        def tokens_per_s(llm: LLM, adapters: list[LoRARequest] | None) -> float:
            started = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False, lora_request=adapters)
            return args.streams * args.output_len / (time.perf_counter() - started)

        for number in (0, *numbers):
            own = [loras[stream % number] for stream in range(args.streams)] if number else None
            for turn in range(-1, args.rounds):
                off, on = tokens_per_s(plain, None), tokens_per_s(adapting, own)
                if turn >= 0:  # before that, steps are recorded
                    print(f"{number:2} adapters: {off:7.1f} -> {on:7.1f} tok/s, {on / off:.2f} of off", flush=True)


def write_model(folder: Path) -> Path:
    """A folder for dummy weights, with the demo model's tokenizer."""
    import lullm

    folder.mkdir()
    demo = Path(lullm.__file__).parent / "demo"
    config = json.loads((demo / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | SIZES))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((demo / name).read_text())
    return folder


def write_adapter(folder: Path, model: Path, rank: int) -> Path:
    """A random adapter in PEFT's form."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = dict(zip(TARGETS, ((queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries)), strict=False))
    shapes |= {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (num_outputs, num_inputs) in shapes.items():
            block = "mlp" if num_outputs == inner or num_inputs == inner else "self_attn"
            at = f"base_model.model.model.layers.{layer}.{block}.{name}"
            tensors[f"{at}.lora_A.weight"] = (0.01 * torch.randn(rank, num_inputs)).bfloat16()
            tensors[f"{at}.lora_B.weight"] = (0.01 * torch.randn(num_outputs, rank)).bfloat16()
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(TARGETS)}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


if __name__ == "__main__":
    main()
