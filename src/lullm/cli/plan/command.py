"""`lullm plan`: its flags, and its tables."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from lullm.cli.flag.engine import add_option_flags, byte_count, token_count
from lullm.cli.flag.model import add_model_argument, take_model
from lullm.cli.plan.beside import OPTIONS, Beside, read_beside
from lullm.cli.plan.gpu import GPU, GPUS, known_gpu
from lullm.cli.plan.layout import Devices, LayoutPlan, Planner, gpus, layout_advice, layouts, processes
from lullm.cli.plan.measure import measure
from lullm.cli.plan.model import PlannedModel, read_model
from lullm.cli.plan.needs import Needs
from lullm.cli.plan.roofline import Machine, Plan, advice, plan
from lullm.config.engine import EngineConfig
from lullm.config.gguf.mmproj.finding import AUTO
from lullm.config.mistral.layout import CONFIG_FILE, PARAMS_FILE
from lullm.config.option.option import options_of
from lullm.errors import ConfigError
from lullm.machine.memory import available_memory_bytes
from lullm.units import GIB, KIB, format_bytes

EXAMPLES = """\
examples:
  lullm plan Qwen/Qwen3-0.6B                          what it takes here
  lullm plan config.json --memory 64GiB --len 32k     a folder or a config.json alone; another machine
  lullm plan config.json --gpus 8 --gpu H100          each way to lay it out on eight GPUs, and which to take
  lullm plan config.json --gpus 2 --cpu               on two worker processes of this machine
  lullm plan MODEL --enable-lora --max-loras 4        with room for four adapters at a time"""

DEFAULT_UTILIZATION = 0.9


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm plan`."""
    parser.description = (
        "Say, for each way to hold the weights, or to lay workers out on devices, what memory a model "
        "takes, how much KV cache is left, and how fast it can be at most: by the bytes that a step must read, and the "
        "products that it must compute. Reads config.json, and of quantized files headers and scales. Of a model of "
        "the hub it fetches config.json alone, of a GGUF file there the whole. Kernels reach 65 to 95 % of these "
        "speeds (docs/performance.md)."
    )
    parser.epilog = EXAMPLES
    add_model_argument(parser)
    parser.add_argument("--model", metavar="MODEL", default=argparse.SUPPRESS, help="the same as MODEL")
    parser.add_argument("--memory", type=byte_count, metavar="SIZE", help="memory for it (default: what is available)")
    parser.add_argument(
        "--len", type=token_count, metavar="N", default=4096, help="tokens of a sequence (default: %(default)s)"
    )
    parser.add_argument("--concurrency", type=int, metavar="N", default=8, help="sequences at a time (default: 8)")
    parser.add_argument("--kv-cache-dtype", choices=("auto", "int8", "fp8"), default="auto", help="(default: auto)")
    parser.add_argument("--bandwidth", type=float, metavar="GB/s", help="what memory gives (default: measured)")
    parser.add_argument("--tflops", type=float, metavar="X", help="10^12 operations a second (default: measured)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    several = parser.add_argument_group("several devices")
    several.add_argument("--gpus", type=int, metavar="N", help="so many devices; --memory and speeds are of each")
    several.add_argument("--gpu", metavar="NAME", help=f"which: {', '.join(GPUS)}")
    several.add_argument("--link", type=float, metavar="GB/s", help="from one GPU to another (default: as --gpu has)")
    several.add_argument(
        "--cpu",
        action="store_true",
        help="the devices are worker processes of one machine, which divide its memory and speed",
    )
    for name in ("tensor", "pipeline", "data"):
        several.add_argument(f"--{name}-parallel-size", type=int, metavar="N", help="only layouts with this size")
    several.add_argument("--quantization", choices=("int8", "int4"), help="of the weights, with --cpu")
    several.add_argument(
        "--gpu-memory-utilization", type=float, metavar="X", help=f"share of a GPU (default: {DEFAULT_UTILIZATION})"
    )
    add_option_flags(parser, EngineConfig, without={each.name for each in options_of(EngineConfig)} - OPTIONS)
    parser.set_defaults(run=run)


_OF_SEVERAL = ("gpu", "link", "cpu", "quantization", "gpu_memory_utilization") + tuple(
    f"{name}_parallel_size" for name in ("tensor", "pipeline", "data")
)


def run(args: argparse.Namespace) -> int:
    """Print the plans. Raises LullmError."""
    _check(args)
    take_model(args, args.positional_model)
    name = getattr(args, "model", "demo")
    model = read_model(name, mmproj=getattr(args, "mmproj", AUTO))
    if model.files is None and Path(name).name not in (CONFIG_FILE, PARAMS_FILE):
        print(f"Of {name} config.json alone is read; its weights are not here.", file=sys.stderr)
    device = "cpu" if args.gpus is None or args.cpu else "cuda"
    model = model.where_it_runs(device, args.gpus or 1)
    config = model.config
    if args.kv_cache_dtype in config.refused_caches:
        raise ConfigError(f"--kv-cache-dtype {args.kv_cache_dtype} is not there for {config.architecture}; take auto")
    args.len = min(args.len, config.max_position_embeddings)
    if args.gpus is not None:
        return _run_layouts(args, replace(model, on_gpu=not args.cpu))
    beside = _beside(args, model)
    machine = _machine(args)
    plans = [plan(model, machine, args.len, args.concurrency, args.kv_cache_dtype, way, beside) for way in model.ways]
    if args.json:
        print(json.dumps({"machine": asdict(machine), "plans": [asdict(each) for each in plans]}, indent=1))
        return 0
    sees = ", with its tower for pictures" if config.vision is not None else ""
    print(f"{config.architecture}{sees}. Memory: {_shown(machine)}\n")
    if config.family.encoder_only is not None:
        rows = [(each.weights, *_held(each, beside), f"{each.prefill:.0f}") for each in plans]
        _print_table(("WEIGHTS", "SIZE", *beside.heads, f"TOK/S OF TEXTS OF {args.len}"), rows)
        print("\nAn encoder keeps nothing between steps: it needs its weights, and no KV cache.")
        return 0
    head = ("WEIGHTS", "SIZE", *beside.heads, "KV A TOKEN", "TOKENS", *_heads(args))
    _print_table(head, [_row(each, beside) for each in plans])
    print(f"\n{advice(plans, args.len, args.concurrency)}")
    return 0


def _run_layouts(args: argparse.Namespace, model: PlannedModel) -> int:
    """Print a plan of each layout. Raises LullmError."""
    if args.quantization is not None and args.quantization not in model.ways:
        raise ConfigError(f"--quantization {args.quantization} is not there for this checkpoint; leave it out")
    devices = _devices(args)
    beside = _beside(args, model)
    planner = Planner(model, args.quantization, args.kv_cache_dtype, beside)
    plans: list[LayoutPlan] = []
    refused: dict[str, list[str]] = {}  # reason -> layouts
    for layout in layouts(args.gpus, args.tensor_parallel_size, args.pipeline_parallel_size, args.data_parallel_size):
        try:
            plans.append(planner.plan(layout, devices, args.len, args.concurrency))
        except ConfigError as error:
            refused.setdefault(str(error), []).append(layout.flags)
    if not plans:
        raise ConfigError(f"no layout: {next(iter(refused))}")
    if args.json:
        data = {"devices": asdict(devices), "plans": [asdict(each) for each in plans], "refused": refused}
        print(json.dumps(data, indent=1))
        return 0
    kind = f"{model.config.architecture}, weights {plans[0].weights}"
    print(f"{kind}. {args.gpus} devices, each: {_shown(devices.each)}\n")
    head = ("TP", "PP", "DP", "WEIGHTS", *beside.heads, "KV A TOKEN", "BLOCKS", *_heads(args))
    _print_table(head, [_layout_row(each, beside) for each in plans])
    for reason, flags in refused.items():
        print(f"\nNot {'; '.join(flags)}: {reason}.")
    print(f"\n{layout_advice(plans, args.len, args.concurrency)}")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Check the flags. Raises ConfigError: a divisor is 0, or a flag has no meaning here."""
    numbers = ("len", "concurrency", "bandwidth", "tflops", "gpus", "link", "gpu_memory_utilization")
    for name in (*numbers, *(name for name in _OF_SEVERAL if name.endswith("_size"))):
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} must be a number above 0, got {value:g}")
    for name in _OF_SEVERAL:
        if args.gpus is None and getattr(args, name):
            raise ConfigError(f"--{name.replace('_', '-')} is for several devices; say how many: --gpus N")
    if args.cpu and (args.gpu or args.link or args.gpu_memory_utilization):
        raise ConfigError("--cpu: worker processes have no --gpu, no --link and no --gpu-memory-utilization")
    if args.gpus is not None and args.quantization and not args.cpu:
        raise ConfigError("--quantization needs --cpu: there are no GPU kernels for it")


def _beside(args: argparse.Namespace, model: PlannedModel) -> Beside:
    """What the flags ask for beside the model. Raises LullmError."""
    given = {name: value for name, value in vars(args).items() if name in OPTIONS}
    where = {"device": "cuda" if model.on_gpu else "cpu", "kv_cache_dtype": args.kv_cache_dtype}
    return read_beside(EngineConfig(**where, **given), model)


def _machine(args: argparse.Namespace) -> Machine:
    bytes_per_s = None if args.bandwidth is None else args.bandwidth * 1e9
    operations_per_s = None if args.tflops is None else args.tflops * 1e12
    memory = available_memory_bytes() if args.memory is None else args.memory
    if bytes_per_s is None or operations_per_s is None:
        measured = measure()
        bytes_per_s, operations_per_s = bytes_per_s or measured[0], operations_per_s or measured[1]
    return Machine(memory, bytes_per_s, operations_per_s)


def _devices(args: argparse.Namespace) -> Devices:
    """The devices of the flags. Raises ConfigError: the facts of a GPU are missing."""
    if args.cpu:
        return processes(args.gpus, _machine(args))
    gpu = None if args.gpu is None else known_gpu(args.gpu)
    needed = ("memory", "bandwidth", "tflops", "link") if args.gpus > 1 else ("memory", "bandwidth", "tflops")
    missing = [f"--{name}" for name in needed if getattr(args, name) is None]
    if gpu is None and missing:
        raise ConfigError(f"say which GPU: --gpu NAME, or {' and '.join(missing)}; or --cpu")
    said = {
        "memory_gib": args.memory and args.memory / GIB,
        "gb_per_s": args.bandwidth,
        "tflops": args.tflops,
        "link_gb_per_s": args.link,
    }
    nothing = GPU(0, 0, 0, args.bandwidth or 0)  # one GPU sends nothing
    gpu = replace(gpu or nothing, **{name: value for name, value in said.items() if value is not None})
    return gpus(args.gpus, gpu, args.gpu_memory_utilization or DEFAULT_UTILIZATION)


def _shown(machine: Machine) -> str:
    speeds = f"read at {machine.bytes_per_s / 1e9:.1f} GB/s; products: {machine.operations_per_s / 1e12:.2f} TFLOP/s"
    return f"{format_bytes(machine.memory_bytes)}, {speeds}"


def _heads(args: argparse.Namespace) -> tuple[str, ...]:
    return f"OF {args.len}", "TOK/S", f"TOK/S OF {args.concurrency}", "PREFILL"


def _row(each: Plan, beside: Beside) -> tuple[str, ...]:
    sizes = *_held(each, beside), f"{each.kv_bytes_per_token / KIB:.1f} KiB", f"{each.num_tokens:,}"
    return each.weights, *sizes, *_figures(each)


def _layout_row(each: LayoutPlan, beside: Beside) -> tuple[str, ...]:
    layout = each.layout
    sizes = *_held(each, beside), f"{each.kv_bytes_per_token / KIB:.1f} KiB", f"{each.num_blocks:,}"
    return str(layout.tensor), str(layout.pipeline), str(layout.data), *sizes, *_figures(each)


def _held(each: Needs, beside: Beside) -> list[str]:
    return [format_bytes(size) for size in (each.weights_bytes, *beside.sizes(each))]


def _figures(each: Needs) -> tuple[str, ...]:
    return f"{each.num_sequences:,}", f"{each.decode:.1f}", f"{each.batch_decode:.0f}", f"{each.prefill:.0f}"


def _print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
