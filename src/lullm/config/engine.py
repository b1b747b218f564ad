"""EngineConfig: every option of an engine as the user says it, checked when it is built and never changed afterwards.

`config.resolve(model_config)` gives the `ResolvedConfig` that the engine is built from, and `config.idle` what an
engine with a thread of its own does while nothing runs.
"""

import dataclasses
import difflib
import os
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from lullm.config.engine_option import EngineOptions
from lullm.config.model import ModelConfig, ModelDType
from lullm.config.option.known_names import refuse_known_names
from lullm.config.option.option import described, option, options_of
from lullm.config.option.sleep_after import parse_sleep_after
from lullm.config.option.vllm import VLLM_OPTIONS
from lullm.config.parallel.cut import check_stages, parse_pipeline_layers
from lullm.config.parallel.share import share_of
from lullm.config.pooling.use import Convert, Runner
from lullm.config.resolved import IdleConfig, ResolvedConfig
from lullm.errors import ConfigError, UnsupportedError
from lullm.types.parallel.placement import Axis
from lullm.types.vllm_argument import without_vllms
from lullm.types.wire.importable import is_importable_name

DType = Literal["auto", "float32", "bfloat16", "float16", "half", "float"]
Device = Literal["auto", "cpu", "cuda"]

DEFAULT_GPU_MEMORY_UTILIZATION = 0.9
DEFAULT_CPU_KV_SHARE = 0.25
"""The rest is for the page cache and for other programs."""


_DTYPE_NAMES = {"half": "float16", "float": "float32"}


class EngineArguments(Protocol):
    """Options that are gathered before they are checked: `EngineArgs`."""

    def create_engine_config(self) -> "EngineConfig":
        """The checked options. Raises ConfigError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(EngineOptions):
    """Options of one engine.

    Raises:
        ConfigError: a value is out of range, or two do not go together. UnsupportedError: what it asks for does not
            exist yet.
    """

    served_model_name: str | None = option(
        None, "the name clients use for the model; default: the model as given", "model"
    )
    runner: Runner = option(
        "auto",
        "what the model gives: 'generate' next tokens, 'pooling' embeddings, scores or classes; 'auto' what its folder "
        "says",
        "model",
    )
    convert: Convert = option(
        "auto",
        "give a model for next tokens a pooling, beside them: 'embed' is the hidden state of the last token, "
        "normalized, 'rerank' a score by the tokens 'yes' and 'no' (Qwen3-Reranker); 'auto' what its folder says",
        "model",
    )
    dtype: DType = option("auto", "type of weights, activations and KV cache; 'auto' takes the checkpoint's", "model")
    max_model_len: int | None = option(
        None,
        "longest prompt and output together, in tokens; default: the model's own limit",
        "model",
        least=1,
        unit="tokens",
    )
    device: Device = option(
        "auto", "where the model runs; 'cuda' is a GPU; 'auto' is 'cpu' until a GPU has run lullm", "device"
    )
    gpu_memory_utilization: float | None = option(
        None,
        "share of a GPU's memory that may be taken, in all; on a CPU, of what is available after the weights, that the "
        "KV cache may take, and no more than twice what the running batch can use; default: "
        f"{DEFAULT_GPU_MEMORY_UTILIZATION} of a GPU's, {DEFAULT_CPU_KV_SHARE} of a CPU's",
        "device",
        above=0,
        most=1,
    )
    data_parallel_size: int = option(
        1,
        "engines with the same model, each in a process of its own on its part of the cores; requests go where their "
        "prefix is known and least work waits",
        "device",
        least=1,
    )
    async_scheduling: bool | None = option(
        None, "plan and launch the next step while one runs; default: on a GPU (a CPU gains nothing)", "device"
    )
    pipeline_layers: str | None = option(
        None,
        "layers of each of the pipeline's stages, like 10,12; default: as even as the bytes of weights that a step "
        "reads",
        "device",
    )
    keep_backup: bool | None = option(
        None,
        "on a GPU: keep the (pinned) host memory of a sleep, with the weights in it, so that the next sleep copies "
        "them only if they have changed; default: on",
        "sleep",
    )
    sleep_after: str | None = option(
        None,
        "when and how deep an idle engine goes to sleep by itself, like 60s:1,10m:disk (depths: 1 or ram, disk, 2); it "
        "needs an engine with a thread of its own; default: never",
        "idle",
    )
    auto_wake: bool | None = option(
        None, "a request to a sleeping engine wakes it and waits; default: on with a sleep_after", "idle"
    )
    wake_timeout: float = option(
        300.0,
        "seconds a request waits for the engine to wake up",
        "idle",
        above=0,
        unit="seconds",
    )
    max_num_wake_waiting: int = option(512, "most requests that may wait for the engine to wake up", "idle", least=1)

    def __post_init__(self) -> None:
        refuse_known_names(self.device, self.kv_cache_dtype, self.attention_backend)
        object.__setattr__(self, "dtype", _dtype_name(self.dtype))
        for each in options_of(EngineConfig):
            each.check(getattr(self, each.name))
        if not self.model:
            raise ConfigError("model must be a folder, a hub id or 'demo', not ''")
        _check_together(self)
        _check_sleep_options(self)
        _check_launched(self)
        _refuse_missing_machinery(self)

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "EngineConfig":
        """From keyword options, vLLM's among them; None where that is no value is the default. Paths become strings.

        Raises:
            ConfigError: an unknown name, or as the constructor does. UnsupportedError: vLLM has it, and lullm does not.
        """
        known = {each.name: each for each in options_of(cls)}
        own = without_vllms(options, VLLM_OPTIONS)
        unknown = sorted(own.keys() - known.keys())
        if unknown:
            meant = (difflib.get_close_matches(name, known, n=1) for name in unknown)
            hints = "".join(f"; did you mean {names[0]}?" for names in meant if names)
            raise ConfigError(
                f"unknown option {', '.join(map(repr, unknown))}{hints}; options are: {', '.join(sorted(known))}"
            )
        said = {name: value for name, value in own.items() if value is not None or known[name].is_optional}
        paths = {name: os.fspath(value) for name, value in said.items() if isinstance(value, os.PathLike)}
        return cls(**{**said, **paths})

    @property
    def idle(self) -> IdleConfig:
        """What an engine with a thread of its own does while nothing runs."""
        return IdleConfig(
            rungs=() if self.sleep_after is None else parse_sleep_after(self.sleep_after),
            wakes_by_request=self.sleep_after is not None if self.auto_wake is None else self.auto_wake,
            wake_timeout=self.wake_timeout,
            max_num_wake_waiting=self.max_num_wake_waiting,
        )

    def resolve(self, model: ModelConfig) -> ResolvedConfig:
        """The options, with values from the model and the device for those that are left open.

        Raises:
            ConfigError: the options do not fit the model.
        """
        max_model_len = self.max_model_len or model.max_position_embeddings
        if max_model_len > model.longest_len:
            raise ConfigError(
                f"max_model_len ({max_model_len}) is above the model's {model.longest_len} positions; lower it or "
                "leave it out"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < max_model_len:
            raise ConfigError(
                f"without chunked prefill max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_model_len ({max_model_len}): a prompt is computed in one step; lower max_model_len or raise it"
            )
        _refuse_for_model(self, model)
        on_gpu, is_cut = self.device == "cuda", self.pipeline_parallel_size > 1
        return ResolvedConfig(
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(EngineOptions)}
            | {"quantization": self.quantization or (None if on_gpu else model.quantization)},
            served_model_name=self.served_model_name or self.model,
            dtype=model.dtype if self.dtype == "auto" else cast(ModelDType, self.dtype),
            max_model_len=max_model_len,
            device="cuda" if on_gpu else "cpu",
            gpu_memory_utilization=self.gpu_memory_utilization
            or (DEFAULT_GPU_MEMORY_UTILIZATION if on_gpu else DEFAULT_CPU_KV_SHARE),
            async_scheduling=on_gpu and not is_cut if self.async_scheduling is None else self.async_scheduling,
            pipeline_layers=parse_pipeline_layers(self.pipeline_layers, self.pipeline_parallel_size),
            keep_backup=(on_gpu and self.enable_sleep_mode) if self.keep_backup is None else self.keep_backup,
        )


EngineConfig.__doc__ = f"{EngineConfig.__doc__}\n{described(EngineConfig)}\n"


def _dtype_name(dtype: Any) -> Any:
    """`'half'` and `torch.float16` -> `'float16'`."""
    name = str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype
    return _DTYPE_NAMES.get(name, name) if isinstance(name, str) else name


def _check_together(config: EngineConfig) -> None:
    """What one option says about another."""
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({config.max_num_batched_tokens}) must be at least max_num_seqs "
            f"({config.max_num_seqs}): every running sequence needs one token per step"
        )
    check_stages(config.pipeline_layers, config.pipeline_parallel_size, bool(config.async_scheduling))
    if config.delay_factor and config.enable_chunked_prefill:
        raise ConfigError("delay_factor belongs to the prefill-first policy; set enable_chunked_prefill=False too")
    if config.batch_invariant and config.attention_backend == "torch":
        raise ConfigError("batch_invariant needs lullm's own attention, not attention_backend='torch': use auto")
    if config.preemption_mode == "swap" and config.swap_space == 0:
        raise ConfigError("preemption_mode='swap' needs swap_space above 0")
    if config.executor_backend == "uni" and config.num_workers > 1:
        raise ConfigError(f"distributed_executor_backend='uni' runs one worker, not {config.num_workers}: use 'mp'")
    if config.executor_backend == "uni":
        alone = _OF_PROCESSES if config.data_parallel_size == 1 else ("step_timeout", "restart_workers")
        _check_defaults(config, alone, "worker processes: distributed_executor_backend='mp'")
    if config.executor_backend == "ray":
        _check_defaults(config, ("restart_workers",), "processes of this machine: distributed_executor_backend='mp'")
    if config.enable_expert_parallel and config.tensor_parallel_size == 1:
        raise ConfigError("enable_expert_parallel deals the experts to workers: set tensor_parallel_size, too")
    if config.calculate_kv_scales and config.kv_cache_dtype not in ("fp8", "fp8_e4m3"):
        raise ConfigError(
            f"calculate_kv_scales needs kv_cache_dtype='fp8', not {config.kv_cache_dtype!r}, which has no such scales"
        )


def _refuse_for_model(config: EngineConfig, model: ModelConfig) -> None:
    """What needs lullm's own layers, with a cache of keys and values, and sizes that workers can share.

    Raises ConfigError, UnsupportedError.
    """
    share_of(model, Axis(0, config.tensor_parallel_size), config.enable_expert_parallel)
    if model.is_all_ops:
        return
    wishes = {
        "quantization": config.quantization is not None and model.foreign is not None,
        "kv_cache_dtype": any(name in config.kv_cache_dtype for name in model.refused_caches),
        "batch_invariant": config.batch_invariant,
    }
    for name, wanted in wishes.items():
        if wanted:
            raise ConfigError(
                f"{name}={getattr(config, name)!r} is not there for {model.architecture}, which {model.beside_ops}; "
                "leave it out"
            )


def _check_sleep_options(config: EngineConfig) -> None:
    wishes = {
        "sleep_after": config.sleep_after is not None,
        "auto_wake": config.auto_wake,
        "keep_backup": config.keep_backup,
        "pin_backup": config.pin_backup,
        "sleep_dir": config.sleep_dir is not None,
        "verify_wake": not config.verify_wake,
    }
    for name, wanted in wishes.items():
        if wanted and not config.enable_sleep_mode:
            raise ConfigError(f"{name}={getattr(config, name)!r} needs enable_sleep_mode=True")
    if not config.idle.wakes_by_request:
        needs = "auto_wake=True or a sleep_after: no request wakes the engine"
        _check_defaults(config, ("wake_timeout", "max_num_wake_waiting"), needs)


_BACKENDS = ("uni", "mp", "ray", "external_launcher")
_OF_PROCESSES = ("worker_timeout", "step_timeout", "restart_workers")


def _check_defaults(config: EngineConfig, names: tuple[str, ...], needs: str) -> None:
    """Raises ConfigError: one of these options is not at its default, and would be without effect."""
    defaults = {each.name: each.default for each in options_of(EngineConfig)}
    for name in names:
        if getattr(config, name) != defaults[name]:
            raise ConfigError(f"{name} needs {needs}")


def _check_launched(config: EngineConfig) -> None:
    """Processes that a launcher has started plan for themselves, and must plan alike. Raises ConfigError."""
    if config.distributed_executor_backend != "external_launcher":
        return
    _check_defaults(config, ("worker_timeout", "restart_workers"), "worker processes of the engine's own: 'mp'")
    wishes = {
        "seed": (config.seed is None, "requests without a seed would draw others in each process"),
        "delay_factor": (config.delay_factor > 0, "each process has a clock of its own"),
        "sleep_after": (config.sleep_after is not None, "each process has a clock of its own"),
        "auto_wake": (bool(config.auto_wake), "a request comes to one process, and all have to wake up"),
        "data_parallel_size": (config.data_parallel_size != 1, "more processes than workers are engines of their own"),
    }
    for name, (wanted, reason) in wishes.items():
        if wanted:
            raise ConfigError(
                f"{name}={getattr(config, name)!r} does not go with distributed_executor_backend='external_launcher': "
                f"{reason}; leave it out, or take 'mp'"
            )


def _refuse_missing_machinery(config: EngineConfig) -> None:
    on_gpu = config.device == "cuda"
    if config.attention_backend == "triton" and not on_gpu:
        raise UnsupportedError("attention_backend='triton' needs device='cuda'; on a CPU use auto or torch")
    backend = config.distributed_executor_backend
    missing = {
        "keep_backup": (
            bool(config.keep_backup) and not on_gpu,
            "on a CPU a backup takes the memory that is to be free",
        ),
        "pin_backup": (config.pin_backup and not on_gpu, "on a CPU nothing is pinned"),
        "kv_cache_dtype": (config.kv_cache_dtype == "int8" and on_gpu, "the GPU's kernels read fp8"),
        "quantization": (config.quantization is not None and on_gpu, "there are no GPU kernels for it; use a CPU"),
        "distributed_executor_backend": (
            isinstance(backend, str) and backend not in _BACKENDS and not is_importable_name(backend),
            "there are 'uni' (in this process), 'mp' (a process for each worker), 'ray' (on several machines) and "
            "'external_launcher' (in each process that torchrun has started), or a class of your own, like "
            "'package.module:Class'",
        ),
    }
    for name, (wanted, advice) in missing.items():
        if wanted:
            raise UnsupportedError(f"{name}={getattr(config, name)!r} is not supported yet: {advice}")
