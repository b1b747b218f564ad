"""The kernels on a GPU, by the heads of the 8B shape: what they move or compute per second. A part of `gpu.py`."""

import statistics
import sys
from dataclasses import dataclass, field
from typing import Any

from shape import SHAPES

GIB = 1 << 30
GPU_SHAPES = {
    "0.6b": SHAPES["qwen3-0.6b"],
    "8b": {
        **SHAPES["qwen3-0.6b"],
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the cases work on; (sequences, tokens of each) for attention."""

    copy_bytes: int = 4 * GIB
    host_bytes: int = GIB
    product: int = 8192
    block_size: int = 16
    decodes: tuple[tuple[int, int], ...] = ((1, 1024), (1, 32768), (8, 4096), (32, 4096), (128, 1024), (128, 4096))
    prefills: tuple[tuple[int, int], ...] = ((1024, 1024), (8192, 8192), (512, 8704), (16, 30016))  # new, in all
    text_lens: tuple[int, ...] = tuple(5 + 37 * number % 300 for number in range(64))
    rows: tuple[int, ...] = (1, 32, 8192)
    blocks: tuple[int, ...] = (1, 16, 256)
    draws: tuple[int, ...] = (1, 32, 256)
    num_layers: int = 8  # of a block that is copied
    max_model_len: int = 4096
    prompt_len: int = 32
    output_len: int = 256
    sleep_seqs: int = 8
    kv_bytes: int = 2 * GIB
    num_requests: int = 256
    mix_lens: tuple[int, int] = (100, 1024)
    max_num_batched_tokens: int = 8192
    peer_options: dict[str, int] = field(default_factory=dict)  # of transformers' continuous batching


SIZES = Sizes()
DECODE_GOAL, PREFILL_GOAL = (32, 4096), (8192, 8192)
"""Those that the goals of `gpu_check` are about."""


REPEAT = 10
"""Runs of which the median counts."""


def require_gpu() -> None:
    """Ends the script with exit status 2, as `gpu_check.py` does, if torch sees no GPU."""
    import torch

    if not torch.cuda.is_available():
        print("torch sees no GPU here; nothing was measured", file=sys.stderr)
        raise SystemExit(2)


def median_s(work: Any, repeat: int | None = None) -> float:
    """Median of device time, by events, of work that takes the device much longer than the host takes to launch it."""
    import torch

    for _ in range(3):
        work()
    seconds = []
    for _ in range(repeat or REPEAT):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def replayed_s(work: Any, at_least_s: float = 2e-3) -> float:
    """Device time of work that a graph can record, without what launching costs the host: many times in one replay."""
    import torch

    num = max(1, min(64, REPEAT, int(at_least_s / median_s(work, repeat=1)) + 1))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(num):
            work()
    return median_s(graph.replay) / num


def kernels() -> dict[str, float]:
    """Every kernel by the heads of the 8B shape: GB/s of the bytes it must move, TFLOP/s of prefill, us of drawing."""
    import torch

    with torch.inference_mode():
        return attention_figures() | mutual_figures() | row_figures() | block_figures() | draw_figures()


def mutual_figures() -> dict[str, float]:
    """Microseconds of a layer's attention in BERT's shape over texts of unequal lengths: torch's, and in one launch."""
    import torch

    from lullm.ops import torch_cpu
    from lullm.ops.attention_layout import MutualScores
    from lullm.ops.triton.layer import mutual

    lens, scores = SIZES.text_lens, MutualScores(0.125)
    q, k, v = torch.randn(sum(lens), 36, 64, device="cuda", dtype=torch.bfloat16).chunk(3, dim=1)
    versions = {"torch": torch_cpu.mutual_attention, "own": mutual.mutual_attention}
    return {
        f"texts_{name}_us": 1e6 * replayed_s(lambda attend=attend: attend(q, k, v, lens, scores))
        for name, attend in versions.items()
    }


def attention_step(
    spans: int, query_len: int, context_len: int, cache_dtype: Any = None, head_size: int | None = None
) -> tuple[Any, ...]:
    """(q, key_cache, value_cache, prepared) of equal spans over scattered blocks, by the heads of the 8B shape."""
    import torch

    from lullm.ops.attention_layout import AttentionLayout
    from lullm.ops.cache.layer_cache import LayerCache
    from lullm.ops.device_layout import DeviceLayout
    from lullm.ops.selection import select_ops

    shape, block_size = GPU_SHAPES["8b"], SIZES.block_size
    heads, size = shape["num_key_value_heads"], head_size or shape["head_dim"]
    num_blocks = -(-context_len // block_size)
    caches = []
    for _ in "kv":
        cache = torch.randn(spans * num_blocks, block_size, heads, size, device="cuda", dtype=torch.bfloat16)
        caches.append(cache if cache_dtype is None else cache.to(cache_dtype))
    tables = torch.randperm(spans * num_blocks).view(spans, num_blocks)
    slots = torch.zeros(spans * query_len, dtype=torch.int64)
    layout = AttentionLayout([query_len] * spans, [context_len] * spans, tables, slots, block_size)
    q = torch.randn(spans * query_len, shape["num_attention_heads"], size, device="cuda", dtype=torch.bfloat16)
    ops = select_ops("cuda")
    placed = DeviceLayout.of(layout, torch.device("cuda"), ops.index_dtype, ops.semaphores_per_span)
    return q, LayerCache(*caches), ops.prepare_attention(placed)


def attention_figures() -> dict[str, float]:
    from lullm.ops.attention_layout import CausalScores
    from lullm.ops.selection import select_ops

    ops, shape = select_ops("cuda"), GPU_SHAPES["8b"]
    num_q, num_kv, size = shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"]
    figures, scores = {}, CausalScores(size**-0.5)
    for spans, context_len in SIZES.decodes:
        step = attention_step(spans, 1, context_len)
        seconds = replayed_s(lambda step=step: ops.attention(*step, scores))
        rate = spans * context_len * 2 * num_kv * size * 2 / seconds / 1e9
        figures[f"decode_{spans}x{context_len}_gb_per_s"] = rate
        if (spans, context_len) == DECODE_GOAL:
            figures["decode_gb_per_s"] = rate
    for query_len, context_len in SIZES.prefills:
        step = attention_step(1, query_len, context_len)
        seconds = replayed_s(lambda step=step: ops.attention(*step, scores))
        num_pairs = query_len * (context_len - query_len) + query_len * (query_len + 1) / 2
        rate = 4 * num_q * size * num_pairs / seconds / 1e12
        figures[f"prefill_{query_len}_of_{context_len}_tflop_per_s"] = rate
        figures[f"prefill_{query_len}_of_{context_len}_us"] = seconds * 1e6
        if (query_len, context_len) == PREFILL_GOAL:
            figures["prefill_tflop_per_s"] = rate
    return figures


def row_figures() -> dict[str, float]:
    """GB/s of the kernels that go over rows."""
    import torch

    from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
    from lullm.ops.selection import select_ops
    from lullm.ops.triton.elementwise import silu_mul

    ops, shape = select_ops("cuda"), GPU_SHAPES["8b"]
    hidden, inner, size = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    num_q, num_kv = shape["num_attention_heads"], shape["num_key_value_heads"]
    options = {"device": "cuda", "dtype": torch.bfloat16}
    figures = {}
    for rows in SIZES.rows:
        x, residual = torch.randn(rows, hidden, **options), torch.randn(rows, hidden, **options)
        weight, gate_up = torch.ones(hidden, **options), torch.randn(rows, 2 * inner, **options)
        qkv = torch.randn(rows, num_q + 2 * num_kv, size, **options)
        cache = LayerCache(*torch.zeros(2, -(-rows // SIZES.block_size), SIZES.block_size, num_kv, size, **options))
        places = torch.arange(rows, device="cuda")
        angles, norm = torch.ones(rows, size, device="cuda"), torch.ones(size, **options)
        head_norm = HeadNorm(norm, norm, 1e-6)
        kinds = {
            "norm": (4 * rows * hidden, lambda x=x, r=residual, w=weight: ops.add_rms_norm(x, r, w, 1e-6)),
            "activation": (3 * rows * inner, lambda x=gate_up: silu_mul(x)),
            "rope": (
                2 * qkv.numel(),
                lambda x=qkv, n=head_norm, p=places, a=angles, c=cache: ops.rope_and_cache(x, n, p, a, c, p),
            ),
        }
        for kind, (num_values, work) in kinds.items():
            figures[f"{kind}_{rows}_gb_per_s"] = 2 * num_values / replayed_s(work) / 1e9
    return figures


def block_figures() -> dict[str, float]:
    """GB/s of copies within the device (read and written), and over the bus (once)."""
    import torch

    from lullm.ops.cache.layer_cache import LayerCache
    from lullm.ops.selection import select_ops

    ops, shape = select_ops("cuda"), GPU_SHAPES["8b"]
    dims = (2 * max(SIZES.blocks), SIZES.block_size, shape["num_key_value_heads"], shape["head_dim"])
    pool, host = (
        [LayerCache(*(torch.zeros(dims, dtype=torch.bfloat16, **place) for _ in "kv")) for _ in range(SIZES.num_layers)]
        for place in ({"device": "cuda"}, {"pin_memory": True})
    )
    block_bytes = 2 * SIZES.num_layers * pool[0].key[0].nbytes
    figures = {}
    for num in SIZES.blocks:
        pairs = [(i, i + num) for i in range(num)]
        copy_s = median_s(lambda pairs=pairs: ops.copy_blocks(pool, pairs))
        out_s = median_s(lambda pairs=pairs: ops.swap_blocks(pool, host, pairs))
        in_s = median_s(lambda pairs=pairs: ops.swap_blocks(host, pool, pairs))
        figures |= {
            f"copy_{num}_gb_per_s": 2 * num * block_bytes / copy_s / 1e9,
            f"swap_out_{num}_gb_per_s": num * block_bytes / out_s / 1e9,
            f"swap_in_{num}_gb_per_s": num * block_bytes / in_s / 1e9,
        }
    return figures


def draw_figures() -> dict[str, float]:
    """Microseconds of drawing from all rows in one way, and of the sampler's stages in torch."""
    import torch

    from lullm.ops.draw_table import DrawTable
    from lullm.ops.selection import select_ops
    from lullm.sampling.sampler import draw_tokens_
    from lullm.types.draw import Draw, DrawParams

    ops, vocab_size = select_ops("cuda"), GPU_SHAPES["8b"]["vocab_size"]
    kinds = {"greedy": (0.0, vocab_size, 1.0), "temperature": (0.8, vocab_size, 1.0), "top_k": (0.8, 50, 1.0),
             "top_p": (0.8, vocab_size, 0.9)}  # fmt: skip
    figures = {}
    for rows in SIZES.draws:
        logits = torch.randn(rows, vocab_size, device="cuda") * 3
        for kind, (temperature, top_k, top_p) in kinds.items():
            table = DrawTable(
                *(
                    torch.full((rows,), value, dtype=dtype, device="cuda")
                    for value, dtype in (
                        (temperature, torch.float32), (top_k, torch.int32), (top_p, torch.float64),
                        (-float("inf"), torch.float32), (1, torch.int64),
                    )
                )
            )  # fmt: skip
            work_s = replayed_s(lambda logits=logits, table=table: ops.draw_tokens(logits, table, False))
            figures[f"draw_{kind}_{rows}_us"] = work_s * 1e6
        draws = [Draw(i, 0, DrawParams(temperature=0.8, top_p=0.9)) for i in range(rows)]
        staged_s = median_s(lambda logits=logits, draws=draws: draw_tokens_(logits.clone(), draws))
        figures[f"draw_in_torch_top_p_{rows}_us"] = staged_s * 1e6
    return figures
