"""Engine flags: one `--flag` per field of EngineConfig, with its type and choices; the help texts stand here."""

import argparse
import dataclasses
import types
import typing
from collections.abc import Callable, Collection
from typing import Any, Literal

from lullm.config.engine import THREAD_OPTIONS, EngineConfig
from lullm.units import GIB, KIB, MIB

HELP = {
    "model": "local folder, hub id, or 'demo' for the bundled model",
    "revision": "branch, tag or commit of a hub id",
    "tokenizer": "folder or hub id of the tokenizer, if it is not the model's",
    "served_model_name": "the name clients use for the model, if not MODEL itself",
    "dtype": "type of weights, activations and KV cache; 'auto' takes the checkpoint's",
    "kv_cache_dtype": "'int8' (the quicker on a CPU) and 'fp8' halve the memory of the KV cache; 'auto' leaves it as "
    "dtype says",
    "calculate_kv_scales": "take the scales of an fp8 KV cache from the first batch, if the checkpoint has none",
    "seed": "seed of the engine, from which requests without one draw theirs; 'none' is random",
    "max_model_len": "longest prompt and output together, in tokens; default: the model's own limit",
    "max_num_seqs": "most sequences in one step",
    "max_num_batched_tokens": "most tokens in one step",
    "block_size": "tokens per KV block",
    "kv_cache_memory_bytes": "memory of the KV cache on a CPU, in bytes or like 512MiB; default: a quarter of what is "
    "available, and no more than the running batch can use",
    "gpu_memory_utilization": "share of a GPU's memory that may be taken; default: 0.9",
    "num_gpu_blocks_override": "number of KV blocks, instead of measuring",
    "swap_space": "GiB of host memory for KV blocks that are swapped out; 0: nothing is swapped",
    "watermark": "share of the KV blocks that admission leaves free for running sequences",
    "enable_prefix_caching": "share the KV of equal prompt prefixes",
    "enable_chunked_prefill": "mix chunks of prompts with decodes in one step; otherwise prompts go first, whole",
    "scheduling_policy": "order of waiting requests; 'priority': lower values first, then arrival",
    "preemption_mode": "what happens to requests that must give their KV blocks back; 'auto' is what is cheaper",
    "delay_factor": "without chunked prefill: let prompts gather for this share of the last prompt step",
    "max_logprobs": "most log-probabilities per position a request may ask for",
    "logprobs_mode": "log-probabilities before or after penalties, temperature and filters",
    "enable_sleep_mode": "allow sleep and wake-up",
    "sleep_dir": "folder for what must survive a sleep; default: the system's folder for temporary files",
    "verify_wake": "compare checksums of weights and KV cache after waking",
    "keep_backup": "on a GPU: keep the host memory of a sleep, with the weights in it, for the next one; default: on",
    "sleep_after": "when and how deep an idle engine goes to sleep by itself, like 60s:1,10m:disk (depths: 1 or ram, "
    "disk, 2); default: never",
    "auto_wake": "a request to a sleeping engine wakes it and waits; default: on with --sleep-after",
    "wake_timeout": "seconds a request waits for the engine to wake up",
    "max_num_wake_waiting": "most requests that may wait for the engine to wake up",
    "threads": "CPU threads that a step uses; default: OMP_NUM_THREADS if it is set, else the cores that the affinity "
    "mask and the CPU quota allow",
    "attention_backend": "which version of attention runs: 'auto' is the device's fastest, 'torch' torch's own over "
    "gathered keys and values (decode steps are not recorded), 'triton' lullm's kernels on a GPU",
    "enforce_eager": "never record decode steps and replay them (CUDA graphs; on a CPU one native call per step)",
    "async_scheduling": "plan and launch the next step while one runs; default: on a GPU",
    "tensor_parallel_size": "workers that share each layer (only 1 yet)",
    "pipeline_parallel_size": "workers that share the layers (only 1 yet)",
    "distributed_executor_backend": "who runs the workers (only 'uni', in this process, yet)",
    "load_format": "'dummy' fills deterministic random weights instead of reading them",
    "quantization": "bits of the matrices, quantized as the checkpoint is read; default: as dtype says",
    "device": "where the model runs; 'auto' is 'cpu' until a GPU has run lullm",
}

SLEEP_OPTIONS = frozenset({"enable_sleep_mode", "sleep_dir", "verify_wake", "keep_backup", *THREAD_OPTIONS})
"""Of no use to commands that nobody could tell to sleep."""

_SIZES = {"": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB}


def byte_count(text: str) -> int:
    """`'1048576'`, `'512MiB'`, `'1.5g'` -> bytes (powers of 1024)."""
    number = text.rstrip("BGIKMbgikm")
    unit = text[len(number) :].lower()
    try:
        return int(float(number) * _SIZES[unit]) if unit else int(number)
    except (KeyError, ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 1048576, 512MiB or 2GiB") from None


def int_or_none(text: str) -> int | None:
    """An integer, or 'none' to turn a default off."""
    try:
        return None if text.lower() == "none" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither an integer nor 'none'") from None


def add_engine_flags(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """A group of engine flags. A flag that is not given leaves no attribute, so that EngineConfig's default holds."""
    group = parser.add_argument_group("engine")
    for field in dataclasses.fields(EngineConfig):
        if field.name in without:
            continue
        flag = "--" + field.name.replace("_", "-")
        text = HELP[field.name].replace("%", "%%")
        if field.default is not None and "default:" not in text:
            text += f" (default: {_shown(field.default)})"
        kind, choices = _kind(field)
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
        elif choices:
            group.add_argument(flag, choices=choices, default=argparse.SUPPRESS, help=text)
        else:
            metavar = {int: "N", int_or_none: "N", float: "X", byte_count: "SIZE"}.get(kind, field.name.upper())
            group.add_argument(flag, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=text)


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The config of the engine flags that were given. Raises ConfigError."""
    names = {field.name for field in dataclasses.fields(EngineConfig)} - args.not_engine
    return EngineConfig(**{name: value for name, value in vars(args).items() if name in names})


def _shown(default: Any) -> str:
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else str(default)


def _kind(field: dataclasses.Field[Any]) -> tuple[Callable[[str], Any], tuple[str, ...]]:
    """(what parses the flag's value, choices), from the field's annotation."""
    annotation: Any = field.type
    if field.name.endswith("_bytes"):
        return byte_count, ()
    if typing.get_origin(annotation) is Literal:
        return str, tuple(choice for choice in typing.get_args(annotation) if choice is not None)
    if isinstance(annotation, types.UnionType):
        (annotation,) = (arm for arm in typing.get_args(annotation) if arm is not types.NoneType)
        if annotation is int and field.default is not None:
            return int_or_none, ()
    return annotation, ()
