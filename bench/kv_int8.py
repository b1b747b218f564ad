"""What an int8 KV cache costs in accuracy, against the same bfloat16 model with a bfloat16 cache.

    python bench/kv_int8.py                          the demo model
    python bench/kv_int8.py --shape qwen3-0.6b       a real model's shape with dummy weights

Logits: the same tokens through the model in chunks of 32, with each kind of cache, and once all in float32. `error` is
the root mean square of the difference to the float32 logits over their standard deviation, `top-1` the share of
positions whose most likely token is that of the float32 logits. Greedy: how much of the outputs (to their end)
two engines have in common before they part; beside int8, bfloat16 with one request at a time, which rounds differently.
"""

import argparse
import itertools
import json
import random
import tempfile
from pathlib import Path

import torch
from throughput import SHAPES

from lullm import LLM, SamplingParams
from lullm.arena.host import HostArena
from lullm.config.model import ModelConfig
from lullm.kv.layout import block_bytes
from lullm.models.decoder import CausalLM
from lullm.models.registry import build_model
from lullm.ops.attention_layout import AttentionLayout
from lullm.ops.int8_cache import quantize
from lullm.ops.table import TORCH_CPU_OPS
from lullm.types.outputs import RequestOutput
from lullm.units import KIB, cdiv
from lullm.weights.dummy import fill_dummy_weights
from lullm.weights.folder import resolve_model
from lullm.weights.loader import load_weights
from lullm.weights.materialize import materialize, weights_bytes

BLOCK_SIZE, CHUNK = 16, 32
STARTS = ["Once upon a time", "One day", "There was a little girl", "Tom had a", "The capital of France is", "A dog"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, help="dummy weights of this shape instead of the demo model")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--input-len", type=int, default=64, help="random tokens per prompt, with --shape")
    parser.add_argument("--output-len", type=int, default=96)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        folder = resolve_model("demo")
        options = {"model": "demo"}
        if args.shape:
            folder = Path(directory)
            folder.joinpath("config.json").write_text(json.dumps(SHAPES[args.shape]))
            options = {"model": directory, "tokenizer": "demo", "load_format": "dummy", "max_model_len": 2048}
        options |= {"dtype": "bfloat16", "kv_cache_memory_bytes": 2**28}
        prompts = make_prompts(args)
        params = SamplingParams(temperature=0.0, max_tokens=args.output_len)
        for kind in ("bfloat16", "int8"):
            size = block_bytes(ModelConfig.from_folder(folder), BLOCK_SIZE, kind)
            print(f"{kind}: {size / KIB:.1f} KiB per block of {BLOCK_SIZE} tokens")
        expected = generate(prompts, params, options)
        report_greedy("int8", generate(prompts, params, options | {"kv_cache_dtype": "int8"}), expected)
        report_greedy("bfloat16, one at a time", generate(prompts, params, options | {"max_num_seqs": 1}), expected)
        sequences = [output.prompt_token_ids + output.outputs[0].token_ids for output in expected]
        report_logits(load_model(folder, bool(args.shape)), sequences)


def make_prompts(args: argparse.Namespace) -> list:
    rng = random.Random(0)
    if not args.shape:
        sums = [f"{rng.randrange(100)} + {rng.randrange(100)} =" for _ in range(args.num_prompts)]
        return (STARTS + sums)[: args.num_prompts]
    return [[rng.randrange(10, 7900) for _ in range(args.input_len)] for _ in range(args.num_prompts)]


def generate(prompts: list, params: SamplingParams, options: dict) -> list[RequestOutput]:
    with LLM(**options) as llm:
        return llm.generate(prompts, params, use_tqdm=False)


def report_greedy(name: str, found: list[RequestOutput], expected: list[RequestOutput]) -> None:
    common = total = num_equal = 0
    for ours, theirs in zip(found, expected, strict=True):
        pairs = zip(ours.outputs[0].token_ids, theirs.outputs[0].token_ids, strict=False)
        common += sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        total += len(theirs.outputs[0].token_ids)
        num_equal += ours.outputs[0].token_ids == theirs.outputs[0].token_ids
    print(
        f"greedy, {name}: {common / total:.1%} of {total} tokens before the first difference, "
        f"{num_equal} of {len(expected)} outputs equal"
    )


def report_logits(model: CausalLM, sequences: list[list[int]]) -> None:
    bf16 = logits(model, sequences, torch.bfloat16)
    int8 = logits(model, sequences, torch.int8)
    exact = logits(model.float(), sequences, torch.float32)
    top = exact.argmax(-1)
    for name, found in (("bf16", bf16), ("int8", int8)):
        error = (found - exact).pow(2).mean().sqrt() / exact.std()
        print(
            f"logits of {len(exact)} tokens, {name} cache: error {error:.4f}, "
            f"top-1 {(found.argmax(-1) == top).float().mean():.2%}"
        )
    print(f"int8 against bf16: error {(int8 - bf16).pow(2).mean().sqrt() / exact.std():.4f}")


def load_model(folder: Path, is_dummy: bool) -> CausalLM:
    model = build_model(ModelConfig.from_folder(folder), torch.bfloat16, 2048 if is_dummy else 1024)
    materialize(model, HostArena("weights", weights_bytes(model)))
    if is_dummy:
        fill_dummy_weights(model)
    else:
        load_weights(model, folder)
    return model


@torch.inference_mode()
def logits(model: CausalLM, sequences: list[list[int]], kv_dtype: torch.dtype) -> torch.Tensor:
    """Of every token of every sequence, `[T, V]` float32; one sequence after the other."""
    config, ops = model.config, TORCH_CPU_OPS
    num_blocks = cdiv(max(map(len, sequences)), BLOCK_SIZE)
    row = torch.zeros(num_blocks, BLOCK_SIZE, config.num_key_value_heads, config.head_dim)
    rows = quantize(row) if kv_dtype == torch.int8 else row.to(kv_dtype)
    caches = [(rows.clone(), rows.clone()) for _ in range(config.num_hidden_layers)]
    found = []
    for token_ids in sequences:
        for start in range(0, len(token_ids), CHUNK):
            part = torch.tensor(token_ids[start : start + CHUNK])
            positions = torch.arange(start, start + len(part))
            table = torch.arange(num_blocks)[None]
            layout = AttentionLayout([len(part)], [start + len(part)], table, positions, BLOCK_SIZE)
            hidden = model(part, positions, caches, ops.prepare_attention(layout), ops)
            found.append(model.compute_logits(hidden, ops))
    return torch.cat(found)


if __name__ == "__main__":
    main()
