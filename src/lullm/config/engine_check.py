"""The checks of an `EngineConfig`: each option by itself, what one says about another, and what does not exist yet.

The annotation of an option says which kind of value it takes, and whether it may be None.
"""

import dataclasses
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from lullm.config.sleep_after import parse_sleep_after
from lullm.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from lullm.config.engine import EngineConfig

MAX_THREADS = 256
_FROM_ZERO = ("max_logprobs", "seed")
"""Integers that may be 0; all others count something that there must be one of."""


def check_options(config: "EngineConfig") -> None:
    """Return if the options can be used, with some model.

    Raises:
        ConfigError: a value is out of range, or two do not go together. UnsupportedError: what it asks for does not
            exist yet.
    """
    _refuse_known_names(config)
    for field in dataclasses.fields(config):
        _check_kind(field.name, getattr(config, field.name), field.type)
    _check_ranges(config)
    _check_together(config)
    _check_sleep_options(config)
    _refuse_missing_machinery(config)


def _refuse_known_names(config: "EngineConfig") -> None:
    """Names that mean something elsewhere deserve more than a list of what there is."""
    if str(config.device).partition(":")[0] in ("npu", "ascend"):
        raise UnsupportedError(
            f"device={config.device!r} is not supported: there are arenas for Ascend memory, but neither ops nor a "
            "device for its steps; use device='cpu'"
        )
    if config.kv_cache_dtype in ("fp8_e5m2", "fp8_inc", "fp8_ds_mla"):
        raise UnsupportedError(f"kv_cache_dtype={config.kv_cache_dtype!r} is not supported: use fp8_e4m3 ('fp8')")
    if config.attention_backend in ("flashinfer", "flash-attn"):
        raise UnsupportedError(
            f"attention_backend={config.attention_backend!r} is not supported yet: use auto, triton or torch"
        )


def _check_kind(name: str, value: object, annotation: Any) -> None:
    """Is the value one of those that the annotation allows? Ranges of floats are another matter."""
    if get_origin(annotation) is Literal:
        if value not in get_args(annotation):
            raise ConfigError(f"{name} must be one of {', '.join(map(str, get_args(annotation)))}, not {value!r}")
        return
    is_optional = NoneType in get_args(annotation)
    if value is None and is_optional:
        return
    kind = get_args(annotation)[0] if is_optional else annotation
    if kind is bool and not isinstance(value, bool):
        raise ConfigError(f"{name} must be {'True, False or None' if is_optional else 'True or False'}, not {value!r}")
    if kind is int:
        least = 0 if name in _FROM_ZERO else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name} must be an integer of at least {least}, not {value!r}")
    if kind is str and not isinstance(value, str):
        raise ConfigError(f"{name} must be a string, not {value!r}")


def _check_ranges(config: "EngineConfig") -> None:
    if not config.model:
        raise ConfigError("model must be a folder, a hub id or 'demo', not ''")
    for name in ("watermark", "swap_space", "delay_factor"):
        value = getattr(config, name)
        if not _is_number(value) or not 0 <= value < float("inf"):
            raise ConfigError(f"{name} must be a number of at least 0, not {value!r}")
    if config.watermark >= 1:
        raise ConfigError(f"watermark is a share of the blocks and must be below 1, got {config.watermark}")
    share = config.gpu_memory_utilization
    if share is not None and (not _is_number(share) or not 0 < share <= 1):
        raise ConfigError(f"gpu_memory_utilization must be a number above 0 and at most 1, not {share!r}")
    if not _is_number(config.wake_timeout) or not 0 < config.wake_timeout < float("inf"):
        raise ConfigError(f"wake_timeout must be a number of seconds above 0, not {config.wake_timeout!r}")
    if config.threads is not None and config.threads > MAX_THREADS:
        raise ConfigError(f"threads must be at most {MAX_THREADS}, not {config.threads}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_together(config: "EngineConfig") -> None:
    """What one option says about another."""
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({config.max_num_batched_tokens}) must be at least max_num_seqs "
            f"({config.max_num_seqs}): every running sequence needs one token per step"
        )
    if config.delay_factor and config.enable_chunked_prefill:
        raise ConfigError("delay_factor belongs to the prefill-first policy; set enable_chunked_prefill=False too")
    if config.preemption_mode == "swap" and config.swap_space == 0:
        raise ConfigError("preemption_mode='swap' needs swap_space above 0")
    if config.calculate_kv_scales and config.kv_cache_dtype not in ("fp8", "fp8_e4m3"):
        raise ConfigError(
            f"calculate_kv_scales needs kv_cache_dtype='fp8', not {config.kv_cache_dtype!r}, which has no such scales"
        )


def _check_sleep_options(config: "EngineConfig") -> None:
    wishes = {
        "sleep_after": config.sleep_after is not None,
        "auto_wake": config.auto_wake,
        "keep_backup": config.keep_backup,
        "sleep_dir": config.sleep_dir is not None,
        "verify_wake": not config.verify_wake,
    }
    for name, wanted in wishes.items():
        if wanted and not config.enable_sleep_mode:
            raise ConfigError(f"{name}={getattr(config, name)!r} needs enable_sleep_mode=True")
    if config.sleep_after is not None:
        parse_sleep_after(config.sleep_after)
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name in ("wake_timeout", "max_num_wake_waiting"):
        if getattr(config, name) != defaults[name] and not config.wakes_by_request:
            raise ConfigError(f"{name} needs auto_wake=True or a sleep_after: no request wakes the engine")


def _refuse_missing_machinery(config: "EngineConfig") -> None:
    on_gpu = config.device == "cuda"
    if config.attention_backend == "triton" and not on_gpu:
        raise UnsupportedError("attention_backend='triton' needs device='cuda'; on a CPU use auto or torch")
    missing = {
        "gpu_memory_utilization": (
            config.gpu_memory_utilization is not None and not on_gpu,
            "use kv_cache_memory_bytes on a CPU",
        ),
        "keep_backup": (
            bool(config.keep_backup) and not on_gpu,
            "on a CPU a backup takes the memory that is to be free",
        ),
        "kv_cache_dtype": (config.kv_cache_dtype == "int8" and on_gpu, "the GPU's kernels read fp8"),
        "quantization": (config.quantization is not None and on_gpu, "there are no GPU kernels for it; use a CPU"),
        "tensor_parallel_size": (config.tensor_parallel_size != 1, "one worker only"),
        "pipeline_parallel_size": (config.pipeline_parallel_size != 1, "one worker only"),
        "distributed_executor_backend": (
            config.distributed_executor_backend not in (None, "uni"),
            "only 'uni' (in-process) exists",
        ),
    }
    for name, (wanted, advice) in missing.items():
        if wanted:
            raise UnsupportedError(f"{name}={getattr(config, name)!r} is not supported yet: {advice}")
