"""Each native CPU op beside torch's version and beside what the machine can do, all measured in one run.

    python bench/kernels.py                      everything, Qwen3-0.6B's shapes in bfloat16
    python bench/kernels.py --only linear --rows 1 8 32
    python bench/kernels.py --repeat 9 --json kernels.json

Linears are printed with their share of what the ceilings of `ceilings.py` allow, attention of decodes with that of
reading, of prompts with that of products, of which a causal prefill counts what a row sees. Versions alternate, the
ceilings with them, and medians are printed; with other work on the machine only the ratios and shares say something.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # two pools that spin against each other measure nothing

import torch
from ceilings import Ceilings, measure
from msgspec.structs import replace

from lullm.arena.host import HostArena
from lullm.kv.layout import SCALE_BYTES
from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cache import float8_cache, int8_cache
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.cpu.native import set_num_threads
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.draw_table import DrawTable
from lullm.ops.quantized.weight import QuantizedLayout
from lullm.ops.selection import NATIVE_CPU_OPS, TORCH_CPU_OPS
from lullm.ops.table import Ops
from lullm.sampling.sampler import draw_tokens_
from lullm.types.draw import Draw, DrawParams
from lullm.units import cdiv

HIDDEN, INTERMEDIATE, NUM_Q_HEADS, NUM_KV_HEADS, HEAD_SIZE, VOCAB = 1024, 3072, 16, 8, 128, 151936
BLOCK_SIZE = 16
CACHE_BYTES = 1_500_000_000
"""Of the bfloat16 layers that a decode passes over: more than any cache holds."""
# out, in
LAYER = [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)]
STEPS = {
    "decode 1 x 128": [(1, 128)],
    "decode 1 x 4096": [(1, 4096)],
    "decode 8 x 160": [(1, 160)] * 8,
    "decode 32 x 160": [(1, 160)] * 32,
    "decode 4 x 1600": [(1, 1600)] * 4,
    "decode 1 x 16384": [(1, 16384)],
    "decode 1 x 32768": [(1, 32768)],
    "prefill 8 x 128": [(128, 128)] * 8,
    "prefill 1 x 1024": [(1024, 1024)],
    "prefill 4 x 1024": [(1024, 1024)] * 4,
    "prefill 1 x 4096": [(4096, 4096)],
    "chunk 512 on 2048": [(512, 2560)],
    "chunk 512 on 15872": [(512, 16384)],
    "chunk 512 on 32256": [(512, 32768)],
    "mixed": [(1, 200)] * 15 + [(400, 600)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["linear", "quantized", "head", "attention", "small"], action="append")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256, 1024])
    parser.add_argument("--step", choices=STEPS, action="append", help="of attention (default: all)")
    parser.add_argument("--layers", type=int, default=28, help="matrices that are passed over, in layers")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    library = load_library()
    if library is None:
        raise SystemExit(f"no native ops: {absence()}")
    torch.set_num_threads(args.threads)
    set_num_threads(args.threads)
    print(f"{library.isa}, {args.threads} threads")
    with torch.inference_mode():
        ceilings = Ceilings()
        figures = ceilings.figures(args.repeat)
        report: dict[str, object] = {"isa": library.isa, "threads": args.threads, "ceilings": figures}
        report["layers"] = args.layers
        sections = {
            "linear": lambda args: linear(args, ceilings),
            "quantized": quantized,
            "head": head,
            "attention": lambda args: attention(args, ceilings),
            "small": small,
        }
        for name in args.only or sections:
            report[name] = sections[name](args)
        ceilings.close()
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


def show(
    name: str, seconds: dict[str, float], amount: float, unit: str, least_s: float | None = None
) -> dict[str, float]:
    """`least_s`: the seconds that the ceilings allow."""
    ratio = seconds["torch"] / seconds["native"]
    share = "" if least_s is None else f"   {least_s / seconds['native']:4.0%} of the ceiling"
    print(
        f"  {name:24} native {amount / seconds['native']:8.2f} {unit} ({seconds['native'] * 1e6:9.1f} us)   "
        f"torch {amount / seconds['torch']:8.2f} {unit}   x{ratio:.2f}{share}",
        flush=True,
    )
    return {**seconds, unit: amount / seconds["native"], "ratio": ratio}


def linear(args: argparse.Namespace, ceilings: Ceilings) -> dict[str, object]:
    """All matrices of all layers, one after the other: too much for any cache of one's own. Gates and ups are fused."""
    shapes = LAYER * args.layers
    size = sum(out * depth * 2 for out, depth in shapes)
    arenas = [HostArena(name, size + 128 * len(shapes)) for name in ("torch", "native")]
    plain, packed = ([arena.empty(shape, torch.bfloat16) for shape in shapes] for arena in arenas)
    for weight, copy in zip(plain, packed, strict=True):
        weight.normal_()
        copy.copy_(weight)
    started = time.perf_counter()
    for weight in packed:
        NATIVE_CPU_OPS.pack_weight_(weight)
    elapsed = time.perf_counter() - started
    print(f"linear, {args.layers} layers, {size / 1e9:.2f} GB; packed in {elapsed:.2f} s")
    report: dict[str, object] = {"pack_s": elapsed}
    gate_up = 2 * INTERMEDIATE
    for rows in args.rows:
        inputs = {depth: torch.randn(rows, depth).bfloat16() for _, depth in LAYER}

        def multiply(ops, weights, inputs=inputs):
            for w in weights:
                if w.shape[0] == gate_up:
                    ops.gated_linear(inputs[w.shape[1]], w, None, "silu")
                else:
                    ops.linear(inputs[w.shape[1]], w, None)

        seconds = measure(
            {
                "native": lambda multiply=multiply: multiply(NATIVE_CPU_OPS, packed),
                "torch": lambda multiply=multiply: multiply(TORCH_CPU_OPS, plain),
                **ceilings.versions,
            },
            args.repeat if rows <= 64 else min(args.repeat, 3),
        )
        amount, unit = (size / 1e9, "GB/s") if rows <= 32 else (size * rows / 1e12, "TFLOP/s")
        least_s = max(ceilings.read_s(size, seconds), ceilings.multiply_s(size * rows, seconds))
        report[str(rows)] = show(f"{rows} rows", seconds, amount, unit, least_s)
    for arena in arenas:
        arena.close()
    return report


def quantized(args: argparse.Namespace) -> dict[str, object]:
    """The same matrices in 8 and in 4 bits, beside native bfloat16."""
    shapes = LAYER * args.layers
    weights: dict[str, list[tuple[torch.Tensor, QuantizedLayout | None]]] = {"bfloat16": [], "int8": [], "int4": []}
    for shape in LAYER:
        plain = torch.randn(shape).bfloat16()
        for name, bits in (("int8", 8), ("int4", 4)):
            layout = QuantizedLayout(bits, *shape)
            packed = torch.zeros(layout.shape, dtype=torch.uint8)
            NATIVE_CPU_OPS.quantize_rows_(packed, layout, 0, plain)
            weights[name] += [(packed.clone(), layout) for _ in range(args.layers)]
        NATIVE_CPU_OPS.pack_weight_(plain)
        weights["bfloat16"] += [(plain.clone(), None) for _ in range(args.layers)]

    def multiply(name: str, inputs: dict[int, torch.Tensor]) -> None:
        ops = NATIVE_CPU_OPS
        for (out, depth), (weight, layout) in zip(sorted(shapes, key=LAYER.index), weights[name], strict=True):
            x, is_gated = inputs[depth], out == 2 * INTERMEDIATE
            if layout is None:
                ops.gated_linear(x, weight, None, "silu") if is_gated else ops.linear(x, weight, None)
            elif is_gated:
                ops.quantized_gated_linear(x, weight, layout, None, "silu")
            else:
                ops.quantized_linear(x, weight, layout, None)

    print(f"quantized, {args.layers} layers: milliseconds, and times as fast as bfloat16")
    report: dict[str, object] = {}
    for rows in args.rows:
        inputs = {depth: torch.randn(rows, depth).bfloat16() for _, depth in LAYER}
        seconds = measure(
            {name: lambda name=name, inputs=inputs: multiply(name, inputs) for name in weights},
            args.repeat if rows <= 64 else min(args.repeat, 3),
        )
        shown = [f"{name} {value * 1e3:8.2f} x{seconds['bfloat16'] / value:.2f}" for name, value in seconds.items()]
        print(f"  {f'{rows} rows':24} " + "   ".join(shown), flush=True)
        report[str(rows)] = seconds
    return report


def head(args: argparse.Namespace) -> dict[str, object]:
    """Logits in float32, and the draw of a token from each row of them: greedy, and with top_k and top_p."""
    print("head")
    report: dict[str, object] = {}
    plain = new_vocabulary()
    packed = plain.clone()
    NATIVE_CPU_OPS.pack_weight_(packed)
    for rows in (r for r in args.rows if r <= 64):
        x = torch.randn(rows, HIDDEN).bfloat16()
        seconds = measure(
            {
                "native": lambda x=x: NATIVE_CPU_OPS.logits(x, packed),
                "torch": lambda x=x: TORCH_CPU_OPS.logits(x, plain),
            },
            args.repeat,
        )
        report[f"logits {rows}"] = show(f"logits, {rows} rows", seconds, packed.numel() * 2 / 1e9, "GB/s")
        logits = torch.randn(rows, VOCAB)
        for name, params in (
            ("greedy", DrawParams(temperature=0.0)),
            ("top_k 50, top_p 0.9", DrawParams(top_k=50, top_p=0.9)),
        ):
            draws = [Draw(row, 0, replace(params, seed=row)) for row in range(rows)]
            keys = torch.randint(2**62, (rows,))
            table = DrawTable.of(draws, keys.numpy(), VOCAB)
            seconds = measure(
                {
                    "native": lambda x=logits, table=table: NATIVE_CPU_OPS.draw_tokens(x, table),
                    "torch": lambda x=logits, draws=draws, k=keys: draw_tokens_(x.clone(), draws, k),
                },
                args.repeat,
            )
            report[f"{name} {rows}"] = show(f"{name}, {rows} rows", seconds, logits.numel() * 4 / 1e9, "GB/s")
    return report


def new_vocabulary() -> torch.Tensor:
    """`[VOCAB, HIDDEN]`: the same rows 128 times, since drawing all of them takes seconds."""
    return torch.randn(VOCAB // 128, HIDDEN).bfloat16().repeat(128, 1)


def attention(args: argparse.Namespace, ceilings: Ceilings) -> dict[str, object]:
    print("attention, per layer")
    report: dict[str, object] = {}
    for name in args.step or STEPS:
        shape = STEPS[name]
        num_blocks = [cdiv(context, BLOCK_SIZE) for _, context in shape]
        ids = torch.randperm(sum(num_blocks))
        tables = torch.zeros(len(shape), max(num_blocks), dtype=torch.int64)
        for span, part in enumerate(ids.split(num_blocks)):
            tables[span, : len(part)] = part
        size = len(ids) * BLOCK_SIZE * NUM_KV_HEADS * HEAD_SIZE
        # Several layers' caches, so that a decode finds its keys in memory as it would in a model.
        is_decode = all(queries == 1 for queries, _ in shape)
        num_layers = min(28, max(2, CACHE_BYTES // (4 * size))) if is_decode else 2
        arena = HostArena("kv_cache", num_layers * 2 * (4 * size + size // HEAD_SIZE * SCALE_BYTES + 384))
        caches = make_caches(arena, (len(ids), BLOCK_SIZE, NUM_KV_HEADS, HEAD_SIZE), num_layers)
        num_tokens = sum(queries for queries, _ in shape)
        layout = AttentionLayout(
            [q for q, _ in shape], [c for _, c in shape], tables, torch.zeros(num_tokens, dtype=torch.int64), BLOCK_SIZE
        )
        q = torch.randn(num_tokens, NUM_Q_HEADS, HEAD_SIZE).bfloat16()

        def run(ops: Ops, layers: list[LayerCache], layout: AttentionLayout = layout, q: torch.Tensor = q) -> None:
            prepared = ops.prepare_attention(DeviceLayout.of(layout))
            for layer in layers:
                ops.attention(q, layer, prepared, CausalScores(HEAD_SIZE**-0.5))

        versions = {name: lambda layers=layers, run=run: run(NATIVE_CPU_OPS, layers) for name, layers in caches.items()}
        versions["torch"] = lambda caches=caches, run=run: run(TORCH_CPU_OPS, caches["native"])
        measured = measure(versions | ceilings.versions, args.repeat)
        seconds = {version: measured[version] / num_layers for version in versions}
        arena.close()
        if is_decode:
            num_bytes = sum(context for _, context in shape) * NUM_KV_HEADS * HEAD_SIZE * 2 * 2
            report[name] = show(name, seconds, num_bytes / 1e9, "GB/s", ceilings.read_s(num_bytes, measured))
        else:
            pairs = sum(queries * (context - (queries - 1) / 2) for queries, context in shape)
            operations = pairs * NUM_Q_HEADS * HEAD_SIZE * 4
            least_s = ceilings.multiply_s(operations, measured)
            report[name] = show(name, seconds, operations / 1e12, "TFLOP/s", least_s)
        of_8_bits = (f"{kind} x{seconds['native'] / seconds[kind]:.2f}" for kind in ("int8", "fp8"))
        print(f"  {'':24} over a cache of 8 bits, times as fast: {', '.join(of_8_bits)}", flush=True)
    return report


def make_caches(arena: HostArena, shape: tuple[int, ...], num_layers: int) -> dict[str, list[LayerCache]]:
    """Of bfloat16 and of 8 bits, all with the same content in every layer."""
    sides = [torch.randn(shape).bfloat16() for _ in range(2)]
    contents = {
        "native": sides,
        "int8": [int8_cache.quantize(side) for side in sides],
        "fp8": [float8_cache.quantize(side, None) for side in sides],
    }
    return {
        name: [
            LayerCache(*(arena.empty(side.shape, side.dtype).copy_(side) for side in own)) for _ in range(num_layers)
        ]
        for name, own in contents.items()
    }


def small(args: argparse.Namespace) -> dict[str, object]:
    """The ops between the products; GB/s counts what they read and write."""
    print("small ops")
    report: dict[str, object] = {}
    norm_weight, head_weight = torch.randn(HIDDEN).bfloat16(), torch.randn(HEAD_SIZE).bfloat16()
    cos_sin = torch.randn(4096, HEAD_SIZE)
    cache = LayerCache(*torch.zeros(2, 256, BLOCK_SIZE, NUM_KV_HEADS, HEAD_SIZE, dtype=torch.bfloat16))
    head_norm = HeadNorm(head_weight, head_weight, 1e-6)
    vocabulary = new_vocabulary()
    packed = vocabulary.clone()
    NATIVE_CPU_OPS.pack_weight_(packed)
    for rows in (1, 32, 1024):
        times = 50 if rows <= 32 else 5  # those of many rows take milliseconds each
        hidden, residual = torch.randn(rows, HIDDEN).bfloat16(), torch.randn(rows, HIDDEN).bfloat16()
        qkv = torch.randn(rows, NUM_Q_HEADS + 2 * NUM_KV_HEADS, HEAD_SIZE).bfloat16()
        positions, slots = torch.arange(rows), torch.randperm(4096)[:rows]
        token_ids = torch.randint(0, VOCAB, (rows,))
        hidden_bytes, heads_bytes = rows * HIDDEN * 2, rows * HEAD_SIZE * 2
        cases: dict[str, tuple[Callable[[object], object], float]] = {
            "embedding": (
                lambda ops, ids=token_ids: ops.embedding(ids, packed if ops is NATIVE_CPU_OPS else vocabulary),
                2 * hidden_bytes,
            ),
            "rms_norm": (lambda ops, x=hidden: ops.rms_norm(x, norm_weight, 1e-6), 2 * hidden_bytes),
            "add_rms_norm": (
                lambda ops, x=hidden, r=residual: ops.add_rms_norm(x, r, norm_weight, 1e-6),
                4 * hidden_bytes,
            ),
            "rope_and_cache": (
                lambda ops, x=qkv, p=positions, s=slots: ops.rope_and_cache(x, head_norm, p, cos_sin, cache, s),
                2 * (NUM_Q_HEADS + 2 * NUM_KV_HEADS) * heads_bytes,
            ),
        }
        for name, (run, num_bytes) in cases.items():
            seconds = measure(
                {
                    "native": lambda run=run, times=times: [run(NATIVE_CPU_OPS) for _ in range(times)],
                    "torch": lambda run=run, times=times: [run(TORCH_CPU_OPS) for _ in range(times)],
                },
                args.repeat,
            )
            seconds = {version: value / times for version, value in seconds.items()}
            report[f"{name} {rows}"] = show(f"{name}, {rows} rows", seconds, num_bytes / 1e9, "GB/s")
    return report


if __name__ == "__main__":
    main()
