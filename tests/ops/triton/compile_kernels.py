"""Compiles kernels for compute capability 9.0 without a GPU, as `launch_*` would. Run by test_compile.py.

What the interpreter lets pass and the compiler does not, and tiles that do not fit into shared memory, show here.
Usage: compile_kernels.py NAME ...: 'rope', 'norm', 'silu', 'copy', 'draw', 'linear', or 'decode', 'prefill', 'split' (a
prefill whose keys are) and 'invariant' with a type of values in the cache and a head size, as in decode-bf16-128. One
line per kernel: name, bytes of shared memory, bytes of registers that were spilled.
"""

import re
import subprocess
import sys
import tempfile

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from lullm.ops.triton import tile
from lullm.ops.triton.block_copy import _copy_kernel
from lullm.ops.triton.decode_attention import _decode_kernel
from lullm.ops.triton.elementwise import _rms_norm_kernel, _silu_mul_kernel
from lullm.ops.triton.linear import _linear_kernel
from lullm.ops.triton.prefill_attention import _prefill_kernel
from lullm.ops.triton.rope_cache import _rope_and_cache_kernel
from lullm.ops.triton.sampling import _draw_kernel

ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp8e4nv": 1, "fp32": 4}
INTEGERS = ("query_starts", "context_lens", "block_tables", "semaphores", "top_k")
LONGS = ("slots", "positions", "tokens", "table", "keys")
DOUBLES = ("top_p",)
FLOATS = ("scales", "partial", "cos_sin", "logits", "scratch", "temperatures", "floors")
UNALIGNED = (
    "query_starts_ptr",
    "context_lens_ptr",
    "block_tables_ptr",
    "num_spans",
    "num_pairs",
    "num_caches",
    "table_stride",
)


def type_of(name, activation, cache):
    if not name.endswith("_ptr"):
        return "fp32" if name in ("eps", "scale_log2") else "i32"
    for words, kind in ((INTEGERS, "*i32"), (DOUBLES, "*fp64"), (FLOATS, "*fp32"), (LONGS, "*i64")):
        if any(word in name for word in words):
            return kind
    return "*" + (cache if name in ("key_ptr", "value_ptr") else activation)


def compile_kernel(kernel, constants, num_warps, num_stages, activation="bf16", cache="bf16"):
    signature, attributes = {}, {}
    for place, parameter in enumerate(kernel.params):
        is_constant = parameter.name in constants
        signature[parameter.name] = "constexpr" if is_constant else type_of(parameter.name, activation, cache)
        if not is_constant and parameter.name not in UNALIGNED and signature[parameter.name] != "fp32":
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return compiled.metadata.shared, spilled_bytes(compiled.asm["ptx"])


def spilled_bytes(ptx):
    """As the assembler reports them; Triton learns of them only when it loads a kernel onto a device.

    Triton 3.9 brings a newer assembler beside the one of that name, for what it writes is too new for the old one.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", file.name, "-o", "/dev/null"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill stores", found)))


def compile_attention(kind, cache, head_size):
    head_size = int(head_size)
    activation = "bf16" if cache == "fp8e4nv" else cache
    tiles = tile._DECODE if kind == "decode" else tile._PREFILL
    chosen = tiles["sm90", ITEM_BYTES[cache], head_size]
    if kind == "split" or (kind == "invariant" and chosen.block_rows > 64):
        chosen = tile.split_tile(chosen)
    constants = {
        "NUM_KV_HEADS": 8,
        "GROUP": 4,
        "HEAD_SIZE": head_size,
        "BLOCK_D": head_size,
        "BLOCK_SIZE": 16,
        "BLOCK_KEYS": chosen.block_keys,
        "WINDOW": 0,
        "HAS_SCALES": cache == "fp8e4nv",
        "PRECISION": "ieee" if activation == "fp32" else "tf32",
    }
    if kind == "decode":
        constants |= {"ROWS": 16, "MAX_SPLITS": 32, "MIN_SPLIT_KEYS": chosen.min_split_keys, "MAX_HEADS": 128}
        kernel = _decode_kernel
    else:
        constants |= {"TILE_LEN": chosen.block_rows // 4, "BLOCK_ROWS": chosen.block_rows}
        constants |= {"IS_SPLIT": kind == "split", "MIN_SPLIT_KEYS": chosen.min_split_keys}
        constants |= {"TAKES_DECODES": kind == "invariant"}
        kernel = _prefill_kernel
    return compile_kernel(kernel, constants, chosen.num_warps, chosen.num_stages, activation, cache)


def compile_named(name):
    if "-" in name:
        return compile_attention(*name.split("-"))
    if name == "rope":
        heads = {"NUM_Q_HEADS": 32, "NUM_KV_HEADS": 8, "HEAD_SIZE": 128, "BLOCK_HALF": 64, "HEADS": 8}
        flags = {"HAS_NORM": True, "IS_FLOAT8": True, "HAS_SCALES": True}
        return compile_kernel(_rope_and_cache_kernel, heads | flags, 4, 3, cache="fp8e4nv")
    if name == "norm":
        return compile_kernel(_rms_norm_kernel, {"SIZE": 4096, "BLOCK": 4096, "HAS_RESIDUAL": True}, 8, 3)
    if name == "silu":
        return compile_kernel(_silu_mul_kernel, {"SIZE": 12288, "BLOCK": tile.ACTIVATION_BLOCK}, 4, 3)
    if name == "copy":
        constants = {"BLOCK_WORDS": 4096, "CHUNK": tile.COPY_WORDS}
        return compile_kernel(_copy_kernel, constants, 8, 3)
    if name == "linear":
        chosen = tile.linear_tile(torch.bfloat16)
        sizes = {"OUTPUTS": 3072, "INPUTS": 1024, "HAS_BIAS": True, "BLOCK_ROWS": chosen.block_rows}
        blocks = {"BLOCK_OUTPUTS": chosen.block_outputs, "BLOCK_INPUTS": chosen.block_inputs, "PRECISION": "tf32"}
        return compile_kernel(_linear_kernel, sizes | blocks, chosen.num_warps, chosen.num_stages)
    sizes = {"VOCAB_SIZE": 151936, "CHUNK": 512, "NUM_CHUNKS": 297, "BLOCK_CHUNKS": 512}
    room = {"ROOM": tile.SAMPLING_ROOM, "BLOCK": tile.SAMPLING_BLOCK, "WRITES_LOGITS": True}
    return compile_kernel(_draw_kernel, sizes | room, tile.SAMPLING_WARPS, 3)


for wanted in sys.argv[1:]:
    print(wanted, *compile_named(wanted), flush=True)
