"""What an int8 or fp8 KV cache costs in accuracy, against the same bfloat16 model with a bfloat16 cache.

    python bench/kv_dtype.py                         the demo model
    python bench/kv_dtype.py --shape qwen3-0.6b      a real model's shape with dummy weights

Logits: the same tokens through the model in chunks of 32, with each kind of cache, and once all in float32. `error` is
the root mean square of the difference to the float32 logits over their standard deviation, `top-1` the share of
positions whose most likely token is that of the float32 logits. Greedy: how much of the outputs (to their end)
two engines have in common before they part; beside them, bfloat16 with one request at a time, which rounds differently.
`fp8` has scales of 1, `fp8, scales` those of the first batch (for logits: of the first chunk).
"""

import argparse
import itertools
import random
import tempfile
from pathlib import Path

import torch
from shape import SHAPES, model_options

from lullm import LLM, SamplingParams
from lullm.arena.host import HostArena
from lullm.config.model import ModelConfig
from lullm.kv.layout import block_bytes
from lullm.models.decoder import CausalLM
from lullm.models.registry import build_model
from lullm.nn.attention import add_kv_scales
from lullm.nn.context import StepContext
from lullm.nn.kv_scale import KVScales
from lullm.ops.attention_layout import AttentionLayout
from lullm.ops.cache.float8_cache import FLOAT8
from lullm.ops.cache.int8_cache import quantize
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.types.outputs import RequestOutput
from lullm.units import KIB, cdiv
from lullm.weights.dummy import fill_dummy_weights
from lullm.weights.folder import resolve_model
from lullm.weights.loader import load_weights
from lullm.weights.materialize import materialize, weights_bytes

BLOCK_SIZE, CHUNK = 16, 32
CACHES: dict[str, dict] = {
    "bfloat16": {},
    "int8": {"kv_cache_dtype": "int8"},
    "fp8": {"kv_cache_dtype": "fp8"},
    "fp8, scales": {"kv_cache_dtype": "fp8", "calculate_kv_scales": True},
}
STARTS = ["Once upon a time", "One day", "There was a little girl", "Tom had a", "The capital of France is", "A dog"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, help="dummy weights of this shape instead of the demo model")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--input-len", type=int, default=64, help="random tokens per prompt, with --shape")
    parser.add_argument("--output-len", type=int, default=96)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        options = model_options(directory, args.shape, max_model_len=2048)
        folder = resolve_model(options["model"])
        options |= {"dtype": "bfloat16", "kv_cache_memory_bytes": 2**28}
        prompts = make_prompts(args)
        params = SamplingParams(temperature=0.0, max_tokens=args.output_len)
        for kind in ("bfloat16", "int8", "fp8_e4m3"):
            size = block_bytes(ModelConfig.from_folder(folder), BLOCK_SIZE, kind)
            print(f"{kind}: {size / KIB:.1f} KiB per block of {BLOCK_SIZE} tokens")
        expected = generate(prompts, params, options)
        for name, cache in CACHES.items():
            if cache:
                report_greedy(name, generate(prompts, params, options | cache), expected)
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
    add_kv_scales(model)
    found = {name: logits(model, sequences, **cache) for name, cache in CACHES.items()}
    exact = logits(model.float(), sequences)
    top = exact.argmax(-1)
    for name, ours in found.items():
        print(
            f"logits of {len(exact)} tokens, {name} cache: error {relative_error(ours, exact, exact):.4f}, top-1 "
            f"{(ours.argmax(-1) == top).float().mean():.2%}, against bfloat16: error "
            f"{relative_error(ours, found['bfloat16'], exact):.4f}"
        )


def relative_error(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> float:
    return float((ours - theirs).pow(2).mean().sqrt() / exact.std())


def load_model(folder: Path, is_dummy: bool) -> CausalLM:
    model = build_model(ModelConfig.from_folder(folder), torch.bfloat16, 2048 if is_dummy else 1024)
    materialize(model, HostArena("weights", weights_bytes(model)))
    if is_dummy:
        fill_dummy_weights(model, TORCH_CPU_OPS)
    else:
        load_weights(model, folder, TORCH_CPU_OPS)
    return model


@torch.inference_mode()
def logits(
    model: CausalLM, sequences: list[list[int]], kv_cache_dtype: str = "auto", calculate_kv_scales: bool = False
) -> torch.Tensor:
    """Of every token of every sequence, `[T, V]` float32; one sequence after the other."""
    config, ops = model.config, TORCH_CPU_OPS
    num_blocks = cdiv(max(map(len, sequences)), BLOCK_SIZE)
    dtype = model.model.norm.weight.dtype
    row = torch.zeros(num_blocks, BLOCK_SIZE, config.num_key_value_heads, config.head_dim)
    rows = quantize(row) if kv_cache_dtype == "int8" else row.to(FLOAT8 if kv_cache_dtype == "fp8" else dtype)
    scales = [module for module in model.modules() if isinstance(module, KVScales)]
    for module in scales:
        module.reset()
    of_layers = [(module.k_scale, module.v_scale) for module in scales] or [()] * config.num_hidden_layers
    caches = [LayerCache(rows.clone(), rows.clone(), *of_layer) for of_layer in of_layers]
    calibrates = calculate_kv_scales
    found = []
    for token_ids in sequences:
        for start in range(0, len(token_ids), CHUNK):
            part = torch.tensor(token_ids[start : start + CHUNK])
            positions = torch.arange(start, start + len(part))
            table = torch.arange(num_blocks)[None]
            layout = AttentionLayout([len(part)], [start + len(part)], table, positions, BLOCK_SIZE)
            attention = (ops.prepare_attention(DeviceLayout.of(layout)),)
            hidden = model(part, StepContext(positions, attention, caches, ops, calibrates=calibrates))
            found.append(model.compute_logits(hidden, ops))
            calibrates = False
    return torch.cat(found)


if __name__ == "__main__":
    main()
