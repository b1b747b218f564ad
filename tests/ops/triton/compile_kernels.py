"""Compiles kernels for a compute capability without a GPU, as `launch_*` would. Run by test_compile.py.

Usage: compile_kernels.py NAME ...:
'rope', 'norm', 'silu', 'copy', 'linear'; 'scan', 'limit', 'race' (of a draw); 'rows', 'gated rows' and 'few outputs'
(products of one or two rows); 'mutual' and 'near' (rows that see each other; within a reach); 'sort', 'few', 'many'
(products of experts), 'sum'; or 'decode', 'prefill', 'split' (a prefill whose keys are) and 'invariant' with a type of
values in the cache, a head size and a compute capability (90), as in decode-bf16-128-80. 'capped decode-...': with a
soft cap, sinks and a window. One line of JSON per kernel: its name, and what `gpu_parts.compiled.Compiled` says of it.
"""

import dataclasses
import json
import sys

import torch
from gpu_parts.compiled import compile_attention, compile_kernel

from lullm.ops.triton import tile
from lullm.ops.triton.block_copy import _copy_kernel
from lullm.ops.triton.draw.race import _race_kernel
from lullm.ops.triton.draw.threshold import _limit_kernel, _scan_kernel
from lullm.ops.triton.elementwise import _rms_norm_kernel, _silu_mul_kernel
from lullm.ops.triton.layer import experts
from lullm.ops.triton.layer.mutual import _mutual_kernel
from lullm.ops.triton.product.few_rows import _few_rows_kernel
from lullm.ops.triton.product.invariant import _linear_kernel
from lullm.ops.triton.rope_cache import _rope_and_cache_kernel

NUM_ROWS = 1
ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp8e4nv": 1, "fp32": 4}


def compile_shipped(kind, cache, head_size, capability="90", **options):
    tiles = tile._DECODE if kind == "decode" else tile._PREFILL
    chosen = tiles[f"sm{capability}", ITEM_BYTES[cache], int(head_size)]
    if kind == "split" or (kind == "invariant" and chosen.block_rows > 64):
        chosen = tile.split_tile(chosen)
    return compile_attention(kind, chosen, int(head_size), cache, int(capability), **options)


def compile_experts(name):
    """Of Qwen3-30B-A3B."""
    shared = {"NUM_USED": 8, "NUM_HERE": 128}
    if name == "sort":
        return compile_kernel(experts._sort_kernel, {"NUM_HERE": 128, "FIRST": 0, "BLOCK": 1024}, 4, 3)
    if name == "sum":
        flags = {"SIZE": 2048, "FIRST": 0, "HAS_SHARED": True, "HAS_GATE": True, "BLOCK": 1024}
        return compile_kernel(experts._sum_kernel, shared | flags, 4, 3)
    chosen = tile.expert_tiles(torch.bfloat16)[name == "many"]
    sizes = {"BLOCK_HERE": 128, "OUTPUTS": 1536, "INPUTS": 2048, "GATHERS": True, "HAS_BIAS": True}
    return compile_kernel(
        experts._product_kernel, shared | sizes | blocks_of(chosen), chosen.num_warps, chosen.num_stages
    )


def blocks_of(chosen):
    return {
        "BLOCK_ROWS": chosen.block_rows, "BLOCK_OUTPUTS": chosen.block_outputs, "BLOCK_INPUTS": chosen.block_inputs,
        "PRECISION": "tf32",
    }  # fmt: skip


def compile_named(name):
    if name.startswith("capped "):
        return compile_shipped(*name.removeprefix("capped ").split("-"), soft_cap=50.0, window=4096)
    if name in ("sort", "few", "many", "sum"):
        return compile_experts(name)
    if "-" in name:
        return compile_shipped(*name.split("-"))
    if name == "rope":
        heads = {"NUM_Q_HEADS": 32, "NUM_KV_HEADS": 8, "HEAD_SIZE": 128, "BLOCK_HALF": 64, "HEADS": 8}
        flags = {"HAS_NORM": True, "IS_FLOAT8": True, "HAS_SCALES": True}
        return compile_kernel(_rope_and_cache_kernel, heads | flags, 4, 3, cache="fp8e4nv")
    if name == "norm":
        return compile_kernel(_rms_norm_kernel, {"SIZE": 4096, "BLOCK": 4096, "HAS_RESIDUAL": True}, 8, 3)
    if name == "silu":
        return compile_kernel(_silu_mul_kernel, {"SIZE": 12288, "BLOCK": tile.ACTIVATION_BLOCK}, 4, 3)
    if name in ("rows", "gated rows", "few outputs"):
        outputs, inputs = {"rows": (6144, 4096), "gated rows": (2 * 12288, 4096), "few outputs": (1024, 2048)}[name]
        chosen, is_gated = tile.few_rows_tile(outputs, inputs, NUM_ROWS), name.startswith("gated")
        sizes = {
            "NUM_ROWS": NUM_ROWS,
            "OUTPUTS": outputs // 2 if is_gated else outputs,
            "INPUTS": inputs,
            "HAS_BIAS": False,
        }
        blocks = {"BLOCK_OUTPUTS": chosen.block_outputs, "BLOCK_INPUTS": chosen.block_inputs, "IS_GATED": is_gated}
        return compile_kernel(_few_rows_kernel, sizes | blocks, chosen.num_warps, 3)
    if name in ("mutual", "near"):
        chosen, is_near = tile._MUTUAL, name == "near"
        heads = {"NUM_HEADS": 12, "GROUP": 1, "HEAD_SIZE": 64 if is_near else 72, "BLOCK_D": 64 if is_near else 128}
        rows = {"BLOCK_ROWS": chosen.block_rows, "BLOCK_KEYS": chosen.block_keys, "REACH": 64 if is_near else -1}
        flags = {"HAS_BIAS": is_near, "PRECISION": "tf32"}
        return compile_kernel(_mutual_kernel, heads | rows | flags, chosen.num_warps, chosen.num_stages)
    if name == "copy":
        constants = {"BLOCK_WORDS": 4096, "CHUNK": tile.COPY_WORDS}
        return compile_kernel(_copy_kernel, constants, 8, 3)
    if name == "linear":
        chosen = tile.linear_tile(torch.bfloat16)
        sizes = {"OUTPUTS": 3072, "INPUTS": 1024, "HAS_BIAS": True}
        return compile_kernel(_linear_kernel, sizes | blocks_of(chosen), chosen.num_warps, chosen.num_stages)
    sizes = {"VOCAB_SIZE": 151936, "BLOCK": tile.SAMPLING_BLOCK}
    if name == "race":
        parts = {"NUM_PARTS": 19, "BLOCK_PARTS": 32, "WRITES_LOGITS": True}
        return compile_kernel(_race_kernel, sizes | parts, tile.PART_WARPS, 3)
    chunks = sizes | {"CHUNK": 512, "NUM_CHUNKS": 297, "ROOM": tile.SAMPLING_ROOM}
    if name == "scan":
        return compile_kernel(_scan_kernel, chunks, tile.PART_WARPS, 3)
    return compile_kernel(_limit_kernel, chunks | {"BLOCK_CHUNKS": 512}, tile.LIMIT_WARPS, 3)


for wanted in sys.argv[1:]:
    print(json.dumps([wanted, dataclasses.asdict(compile_named(wanted))]), flush=True)
