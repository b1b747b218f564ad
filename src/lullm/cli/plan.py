"""`lullm plan`: what a model takes of this machine's memory and time, before anything is loaded."""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lullm.cli.flag.engine import byte_count, token_count
from lullm.cli.flag.model import add_model_argument
from lullm.config.model import ModelConfig
from lullm.errors import CacheSizeError, ConfigError
from lullm.machine.memory import available_memory_bytes
from lullm.units import KIB, MIB, format_bytes

if TYPE_CHECKING:
    from lullm.models.protocol import Model

PROCESS_BYTES = 450 * MIB
"""What Python, torch and the activations of a step take beside weights and KV cache: 0.35 to 0.45 GiB measured."""
BLOCK_SIZE = 16
ROWS = (None, "int8", "int4")

EXAMPLES = """\
examples:
  lullm plan Qwen/Qwen3-0.6B                          what it takes here
  lullm plan config.json --memory 64GiB --len 32k     a folder or a config.json alone; another machine"""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to hold a model. Sizes in bytes, speeds in tokens per second.

    Attributes:
        weights: how they are held. kv_bytes_per_token: of a sequence of the planned length, on average.
        num_tokens: that the cache holds in what memory is left. num_sequences: of the planned length.
        decode: of one sequence. batch_decode: of `concurrency` sequences together. prefill: of a prompt of that length.
    """

    weights: str
    weights_bytes: int
    kv_bytes_per_token: float
    num_tokens: int
    num_sequences: int
    decode: float
    batch_decode: float
    prefill: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is: bytes of memory, bytes read and operations computed in a second."""

    memory_bytes: int
    bytes_per_s: float
    operations_per_s: float


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The sub-command and its flags."""
    parser = commands.add_parser(
        "plan",
        help="say what a model takes of this machine, before it is loaded",
        description="Say, for each way to hold the weights, what memory a model takes, how much KV cache is left, and "
        "how fast it can be at most: by the bytes that a step must read, and the products that it must compute. Reads "
        "config.json only. Kernels reach 65 to 95 % of these speeds (docs/performance.md).",
        epilog=EXAMPLES,
    )
    add_model_argument(parser)
    parser.add_argument("--memory", type=byte_count, metavar="SIZE", help="memory for it (default: what is available)")
    parser.add_argument(
        "--len", type=token_count, metavar="N", default=4096, help="tokens of a sequence (default: %(default)s)"
    )
    parser.add_argument("--concurrency", type=int, metavar="N", default=8, help="sequences at a time (default: 8)")
    parser.add_argument("--kv-cache-dtype", choices=("auto", "int8", "fp8"), default="auto", help="(default: auto)")
    parser.add_argument("--bandwidth", type=float, metavar="GB/s", help="what memory gives (default: measured)")
    parser.add_argument("--tflops", type=float, metavar="X", help="10^12 operations a second (default: measured)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plans. Raises LullmError."""
    for name in ("len", "concurrency", "bandwidth", "tflops"):
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"--{name} must be a number above 0, got {value:g}")
    model = read_config(args.positional_model or "demo")
    if args.kv_cache_dtype == "fp8" and not model.is_all_ops:
        raise ConfigError(f"--kv-cache-dtype fp8 is not there for {model.architecture}; take auto or int8")
    if args.len > model.max_position_embeddings:
        args.len = model.max_position_embeddings
    machine = _machine(args)
    plans = [plan(model, machine, args.len, args.concurrency, args.kv_cache_dtype, way) for way in _ways(model)]
    if args.json:
        print(json.dumps({"machine": asdict(machine), "plans": [asdict(each) for each in plans]}, indent=1))
        return 0
    speeds = f"read at {machine.bytes_per_s / 1e9:.1f} GB/s; products: {machine.operations_per_s / 1e12:.2f} TFLOP/s"
    print(f"{model.architecture}. Memory: {format_bytes(machine.memory_bytes)}, {speeds}\n")
    _print_table(plans, args)
    print(f"\n{advice(plans, args.len, args.concurrency)}")
    return 0


def read_config(name: str) -> ModelConfig:
    """The config of a model's name, of a folder that holds only a config.json, or of that file."""
    from lullm.weights.folder import resolve_model

    path = Path(name).expanduser()
    return ModelConfig.from_folder(path.parent if path.name == "config.json" else resolve_model(name))


def plan(
    model: ModelConfig, machine: Machine, length: int, concurrency: int, kv_cache_dtype: str, quantization: str | None
) -> Plan:
    """One way to hold the model's weights. `length`: tokens of a sequence."""
    from lullm.kv.layout import block_bytes, num_blocks_for_len
    from lullm.models.work import bytes_read, operations
    from lullm.weights.materialize import weights_bytes

    plain, held = _built(model, None), _built(model, quantization)
    kv_dtype = {"auto": model.dtype, "fp8": "fp8_e4m3"}.get(kv_cache_dtype, kv_cache_dtype)
    size = block_bytes(model, BLOCK_SIZE, kv_dtype)
    per_sequence = num_blocks_for_len(model, BLOCK_SIZE, kv_dtype, length) * size
    weights = weights_bytes(held)
    left = max(machine.memory_bytes - weights - PROCESS_BYTES, 0)

    def least_s(num_rows: int, num_logits: int, kv_bytes: float) -> float:
        reading = (bytes_read(held, model, num_rows) + kv_bytes) / machine.bytes_per_s
        return max(reading, operations(plain, model, num_rows, num_logits) / machine.operations_per_s)

    return Plan(
        weights=quantization or model.dtype,
        weights_bytes=weights,
        kv_bytes_per_token=per_sequence / length,
        num_tokens=int(left / (per_sequence / length)),
        num_sequences=int(left // per_sequence),
        decode=1 / least_s(1, 1, per_sequence),
        batch_decode=concurrency / least_s(concurrency, concurrency, concurrency * per_sequence),
        prefill=length / least_s(length, 1, 0),
    )


def advice(plans: list[Plan], length: int, concurrency: int) -> str:
    """Which plan to take, and why: the most exact one that has room for what is asked."""
    for each in plans:
        if each.num_sequences >= concurrency:
            flag = "" if each is plans[0] else f" (--quantization {each.weights})"
            return f"Take {each.weights}{flag}: it has room for {each.num_sequences} sequences of {length} tokens."
    most = max(plans, key=lambda each: each.num_sequences)
    if most.num_sequences == 0:
        raise CacheSizeError(
            f"no sequence of {length} tokens fits beside the weights, which take {format_bytes(most.weights_bytes)} as "
            f"{most.weights}; lower --len, or take a smaller model"
        )
    return (
        f"{concurrency} sequences of {length} tokens fit in none; {most.weights} has room for {most.num_sequences}, "
        "the others wait or are swapped. Lower --len, or try --kv-cache-dtype int8."
    )


def _ways(model: ModelConfig) -> tuple[str | None, ...]:
    """A quantized checkpoint is held as it is."""
    can_quantize = model.encoding is None and model.foreign is None and model.is_all_ops
    return ROWS if can_quantize and model.dtype != "float16" else (None,)


def _built(model: ModelConfig, quantization: str | None) -> "Model":
    """The model on the meta device: shapes without memory."""
    import torch

    from lullm.models.registry import build_model
    from lullm.weights.quantization import quantize_model

    built = build_model(model, getattr(torch, model.dtype), min(model.max_position_embeddings, 4096))
    if quantization is not None:
        quantize_model(built, quantization)
    return built


def _machine(args: argparse.Namespace) -> Machine:
    bytes_per_s = None if args.bandwidth is None else args.bandwidth * 1e9
    operations_per_s = None if args.tflops is None else args.tflops * 1e12
    memory = available_memory_bytes() if args.memory is None else args.memory
    if bytes_per_s is None or operations_per_s is None:
        measured = _measure()
        bytes_per_s, operations_per_s = bytes_per_s or measured[0], operations_per_s or measured[1]
    return Machine(memory, bytes_per_s, operations_per_s)


def _measure() -> tuple[float, float]:
    """Bytes that a sum reads, and operations that torch's bfloat16 product computes, in a second; takes 0.5 s."""
    import time

    import torch

    memory = torch.ones(1 << 25, dtype=torch.float64)  # 256 MiB, beyond the caches
    x, weight = torch.ones(1024, 2048).bfloat16(), torch.ones(2048, 2048).bfloat16()

    def least_s(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(6):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    return memory.nbytes / least_s(lambda: memory.sum()), 2 * 1024 * 2048 * 2048 / least_s(lambda: x @ weight.T)


def _print_table(plans: list[Plan], args: argparse.Namespace) -> None:
    head = (
        "WEIGHTS",
        "SIZE",
        "KV A TOKEN",
        "TOKENS",
        f"OF {args.len}",
        "TOK/S",
        f"TOK/S OF {args.concurrency}",
        "PREFILL",
    )
    rows: list[tuple[Any, ...]] = [head]
    for each in plans:
        sizes = (format_bytes(each.weights_bytes), f"{each.kv_bytes_per_token / KIB:.1f} KiB", f"{each.num_tokens:,}")
        speeds = (f"{each.decode:.1f}", f"{each.batch_decode:.0f}", f"{each.prefill:.0f}")
        rows.append((each.weights, *sizes, f"{each.num_sequences:,}", *speeds))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
