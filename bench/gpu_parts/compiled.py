"""Kernels compiled for a compute capability without a GPU: registers, shared memory, spills, and how many run at once.

What the interpreter lets pass and the compiler does not, and tiles that do not fit, show here. Occupancy is arithmetic
by the limits of NVIDIA's programming guide; what a tile reaches, a GPU must say.
"""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INTEGERS = ("starts", "context_lens", "block_tables", "semaphores", "top_k", "counts", "order", "state")
LONGS = ("slots", "positions", "tokens", "table", "keys", "load", "expert")
DOUBLES = ("top_p", "runners")
FLOATS = ("scales", "sinks", "partial", "cos_sin", "logits", "scratch", "chunks", "temperatures", "floors",
          "shares")  # fmt: skip
UNALIGNED = (
    "query_starts_ptr", "context_lens_ptr", "block_tables_ptr", "num_spans", "num_pairs", "num_caches", "num_rows",
    "table_stride",
)  # fmt: skip
INSTRUCTIONS = {
    "tcgen05.mma": "tcgen05", "wgmma.mma_async": "wgmma", "mma.sync": "mma", "cp.async.bulk.tensor": "TMA",
    "cp.async.cg": "cp.async",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """Its limits. Each program takes 1 KiB of shared memory more than it asks for."""

    shared_bytes: int
    shared_bytes_per_program: int
    registers: int = 65536
    warps: int = 64
    programs: int = 32


MULTIPROCESSORS = {
    80: Multiprocessor(164 << 10, 163 << 10),
    90: Multiprocessor(228 << 10, 227 << 10),
    100: Multiprocessor(228 << 10, 227 << 10),
}
"""By compute capability: A100, H100 and H200, B200."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Of one kernel; bytes per program, registers and spilled bytes per thread."""

    capability: int
    num_warps: int
    registers: int
    shared_bytes: int
    spilled_bytes: int
    instructions: tuple[str, ...]
    before_wait: tuple[str, ...] | None = None
    """The accesses to memory before it waits for the kernels before it; None: it does not (`ops/triton/overlap.py`)."""

    @property
    def programs_at_once(self) -> int:
        """Per multiprocessor; 0: it does not fit. A warp has registers in pieces of 256."""
        limits = MULTIPROCESSORS[self.capability]
        if self.shared_bytes > limits.shared_bytes_per_program:
            return 0
        by_registers = limits.registers // (-(-self.registers * 32 // 256) * 256 * self.num_warps)
        by_shared = limits.shared_bytes // (self.shared_bytes + 1024)
        return min(by_registers, by_shared, limits.warps // self.num_warps, limits.programs)


def compile_kernel(
    kernel: Any,
    constants: Mapping[str, Any],
    num_warps: int,
    num_stages: int,
    activation: str = "bf16",
    cache: str = "bf16",
    capability: int = 90,
) -> Compiled:
    """As a launch would, with types and alignments by the parameters' names."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, attributes = {}, {}
    overlaps = capability >= 90 and "OVERLAPS" in kernel.arg_names
    constants = dict(constants) | ({"OVERLAPS": overlaps} if "OVERLAPS" in kernel.arg_names else {})
    for place, parameter in enumerate(kernel.params):
        is_constant = parameter.name in constants
        signature[parameter.name] = "constexpr" if is_constant else type_of(parameter.name, activation, cache)
        if not is_constant and parameter.name not in UNALIGNED and signature[parameter.name] != "fp32":
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": num_warps, "num_stages": num_stages, "launch_pdl": overlaps}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = compiled.asm["ptx"]
    registers, spilled = assembled(ptx, capability)
    used = tuple(word for mark, word in INSTRUCTIONS.items() if mark in ptx)
    return Compiled(capability, num_warps, registers, compiled.metadata.shared, spilled, used, before_wait(ptx))


def before_wait(ptx: str) -> tuple[str, ...] | None:
    """The accesses to global memory that stand before the wait; None: there is no wait."""
    before, wait, _ = ptx.partition("griddepcontrol.wait")
    return tuple(re.findall(r"\b(?:(?:ld|st|atom|red)\.[\w.:]*global|cp\.async[\w.:]*)", before)) if wait else None


def type_of(name: str, activation: str, cache: str) -> str:
    if not name.endswith("_ptr"):
        return "fp32" if name in ("eps", "scale_log2") else "i32"
    for words, kind in ((INTEGERS, "*i32"), (DOUBLES, "*fp64"), (FLOATS, "*fp32"), (LONGS, "*i64")):
        if any(word in name for word in words):
            return kind
    return "*" + (cache if name in ("key_ptr", "value_ptr") else activation)


def assembled(ptx: str, capability: int) -> tuple[int, int]:
    """(registers, bytes spilled) of a thread, by the assembler; Triton learns of them when it loads a kernel.

    Triton 3.9 brings a newer assembler beside the one of that name, for what it writes is too new for the old one.
    """
    from triton.backends.nvidia.compiler import get_ptxas

    suffix = "a" if capability >= 90 else ""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [
            get_ptxas(capability).path,
            "-v",
            f"--gpu-name=sm_{capability}{suffix}",
            file.name,
            "-o",
            "/dev/null",
        ]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    [registers] = re.findall(r"Used (\d+) registers", found)
    return int(registers), sum(map(int, re.findall(r"(\d+) bytes spill stores", found)))


def attention_constants(
    kind: str, tile: Any, head_size: int, cache: str, block_size: int = 16, soft_cap: float = 0.0, window: int = 0
) -> dict[str, Any]:
    """Of 32 query heads and 8 key/value heads. `kind`: 'decode', 'prefill', 'split' or 'invariant'. With sinks, if
    there is a soft cap."""
    constants: dict[str, Any] = {
        "NUM_KV_HEADS": 8,
        "GROUP": 4,
        "HEAD_SIZE": head_size,
        "BLOCK_D": head_size,
        "BLOCK_SIZE": block_size,
        "BLOCK_KEYS": tile.block_keys,
        "WINDOW": window,
        "HAS_SCALES": cache == "fp8e4nv",
        "HAS_SINKS": bool(soft_cap),
        "SOFT_CAP": soft_cap,
        "PRECISION": "ieee" if cache == "fp32" else "tf32",
        "MIN_SPLIT_KEYS": tile.min_split_keys,
    }
    if kind == "decode":
        return constants | {"ROWS": 16, "MAX_SPLITS": 32, "MAX_HEADS": 128}
    constants |= {"TILE_LEN": tile.block_rows // 4, "BLOCK_ROWS": tile.block_rows}
    return constants | {"IS_SPLIT": kind == "split", "TAKES_DECODES": kind == "invariant"}


def compile_attention(
    kind: str, tile: Any, head_size: int, cache: str, capability: int = 90, **options: Any
) -> Compiled:
    """`cache`: the type of its values, as Triton names it; activations are bf16 over fp8."""
    from lullm.ops.triton.decode_attention import _decode_kernel
    from lullm.ops.triton.prefill_attention import _prefill_kernel

    return compile_kernel(
        _decode_kernel if kind == "decode" else _prefill_kernel,
        attention_constants(kind, tile, head_size, cache, **options),
        tile.num_warps,
        tile.num_stages,
        "bf16" if cache == "fp8e4nv" else cache,
        cache,
        capability,
    )
