"""EngineConfig: every option of an engine as the user gave it, checked when it is built and never changed afterwards.

`config.resolve(model_config)` gives the `ResolvedConfig` that the engine is built from. `config.idle` has the options
of an idle engine with a thread of its own.
"""

import dataclasses
import difflib
import json
import os
from dataclasses import dataclass
from typing import Any, Protocol, cast

from lullm.config.agreement.model import check_for_model
from lullm.config.agreement.options import check_agreement, refuse_known_names
from lullm.config.engine_option import EngineOptions
from lullm.config.json_file import given_path
from lullm.config.model import ModelConfig, ModelDType
from lullm.config.option.option import described, options_of
from lullm.config.option.pictures import MediaLimits, parse_limits
from lullm.config.option.speculation import Speculation, parse_speculation
from lullm.config.option.vllm import ELSEWHERE, VLLM_OPTIONS
from lullm.config.parallel.cut import parse_pipeline_layers
from lullm.config.resolved import ResolvedConfig
from lullm.config.user_option import DEFAULT_CPU_KV_SHARE, DEFAULT_GPU_MEMORY_UTILIZATION, UserOptions
from lullm.errors import ConfigError
from lullm.types.vllm_argument import without_vllms

_DTYPE_NAMES = {"half": "float16", "float": "float32"}
_OBJECTS = (
    "override_generation_config",
    "hf_overrides",
    "default_chat_template_kwargs",
    "speculative_config",
    "limit_mm_per_prompt",
    "mm_processor_kwargs",
)
"""Options whose value is JSON, or a dict."""


class EngineArguments(Protocol):
    """Options that are gathered before they are checked: `EngineArgs`."""

    def create_engine_config(self) -> "EngineConfig":
        """The checked options. Raises ConfigError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(UserOptions):
    """Options of one engine.

    Raises:
        ConfigError: a value is out of range, or two do not go together.
        UnsupportedError: a value needs a feature that does not exist yet.
    """

    def __post_init__(self) -> None:
        for name in _OBJECTS:
            if isinstance(given := getattr(self, name), dict):  # vLLM's form of it
                object.__setattr__(self, name, _as_json(name, given))
        refuse_known_names(self)
        object.__setattr__(self, "dtype", _dtype_name(self.dtype))
        for each in options_of(EngineConfig):
            # The command line, MessagePack and scripts for vLLM have lists.
            if each.is_repeated and isinstance(value := getattr(self, each.name), list):
                object.__setattr__(self, each.name, tuple(value))
            each.check(getattr(self, each.name))
        if not self.model:
            raise ConfigError("model must be a folder, a hub id or 'demo', not ''")
        check_agreement(self)

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "EngineConfig":
        """From keyword options, including vLLM's. None means the default, unless None is a value. Paths become strings.

        Raises:
            ConfigError: an unknown name, or as the constructor does.
            UnsupportedError: vLLM has it, and lullm does not.
        """
        known = {each.name: each for each in options_of(cls)}
        own = without_vllms(options, VLLM_OPTIONS)
        unknown = sorted(own.keys() - known.keys())
        if unknown:
            alike = {name: difflib.get_close_matches(name, known, n=1) for name in unknown}
            meant = (ELSEWHERE.get(name) or "".join(alike[name]) for name in unknown)
            hints = "".join(f"; did you mean {name}?" for name in meant if name)
            raise ConfigError(
                f"unknown option {', '.join(map(repr, unknown))}{hints}; options are: {', '.join(sorted(known))}"
            )
        said = {name: value for name, value in own.items() if value is not None or known[name].is_optional}
        paths = {name: os.fspath(value) for name, value in said.items() if isinstance(value, os.PathLike)}
        return cls(**{**said, **paths})

    def resolve(self, model: ModelConfig) -> ResolvedConfig:
        """The options, with values of the model and the device for those that are left open.

        Raises:
            ConfigError: the options do not fit the model.
        """
        max_model_len = self.max_model_len or model.max_position_embeddings
        if max_model_len > model.longest_len:
            raise ConfigError(
                f"max_model_len ({max_model_len}) is above the model's {model.longest_len} positions; lower it or "
                "leave it out"
            )
        encodes = model.family.encoder_only is not None
        if not self.enable_chunked_prefill and not encodes and self.max_num_batched_tokens < max_model_len:
            raise ConfigError(
                f"without chunked prefill max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_model_len ({max_model_len}): a prompt is computed in one step; lower max_model_len or raise it"
            )
        check_for_model(self, model)
        on_gpu = self.place == "cuda"
        speculation = self._speculation()
        overlaps = on_gpu and self.pipeline_parallel_size == 1 and speculation is None
        default_share = DEFAULT_GPU_MEMORY_UTILIZATION if on_gpu else DEFAULT_CPU_KV_SHARE
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(EngineOptions)}
        given["quantization"] = self.quantization or (None if on_gpu else model.quantization)
        for name in ("sleep_dir", "allowed_local_media_path"):
            given[name] = given[name] and str(given_path(given[name]))
        if encodes:  # it computes a prompt in one step, and keeps nothing that a later one could use
            given["max_num_batched_tokens"] = max(self.max_num_batched_tokens, max_model_len)
            given["enable_chunked_prefill"] = given["enable_prefix_caching"] = False
        limits = MediaLimits(0, 0, 0) if self.language_model_only else parse_limits(self.limit_mm_per_prompt)
        return ResolvedConfig(
            **given,
            served_model_name=self.served_model_name or self.model,
            dtype=model.dtype if self.dtype == "auto" else cast(ModelDType, self.dtype),
            max_model_len=max_model_len,
            device=self.place,
            gpu_memory_utilization=self.gpu_memory_utilization or default_share,
            async_scheduling=overlaps if self.async_scheduling is None else self.async_scheduling,
            pipeline_layers=parse_pipeline_layers(self.pipeline_layers, self.pipeline_parallel_size),
            keep_backup=(on_gpu and self.enable_sleep_mode) if self.keep_backup is None else self.keep_backup,
            speculative_config=speculation,
            limit_mm_per_prompt=limits,
        )

    def _speculation(self) -> Speculation | None:
        """How tokens are guessed; a launcher's processes must plan alike, so they do not measure whether it pays."""
        speculation = parse_speculation(self.speculative_config)
        if speculation is None or speculation.adaptive is not None:
            return speculation
        return dataclasses.replace(speculation, adaptive=self.distributed_executor_backend != "external_launcher")


EngineConfig.__doc__ = f"{EngineConfig.__doc__}\n{described(EngineConfig)}\n"


def _as_json(name: str, value: dict[Any, Any]) -> str | None:
    """Raises ConfigError: it holds an object that JSON has no word for."""
    try:
        return json.dumps(value) if value else None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} must hold numbers, texts, lists and dicts of them only: {error}") from None


def _dtype_name(dtype: Any) -> Any:
    """`'half'` and `torch.float16` -> `'float16'`."""
    name = str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype
    return _DTYPE_NAMES.get(name, name) if isinstance(name, str) else name
