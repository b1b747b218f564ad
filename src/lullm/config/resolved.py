"""The configs that an engine is built from: ResolvedConfig for its workers and its loop, IdleConfig for its thread.

`EngineConfig` makes both. They hold values where the user may leave a choice open.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lullm.config.engine_option import EngineOptions
from lullm.config.model import ModelConfig, ModelDType
from lullm.config.option.pictures import MediaLimits
from lullm.config.option.sleep_after import SleepRung
from lullm.config.option.speculation import Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """The model that guesses tokens. `model`: all of it. `max_model_len`: the longest sequence that it sees."""

    folder: Path
    model: ModelConfig
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig(EngineOptions):
    """The options of an engine for one model on one device; nothing is 'auto' any more.

    Attributes:
        served_model_name: the name clients use.
        dtype: of weights and activations.
        max_model_len: longest sequence (prompt and output, tokens). In a running engine: the length that the KV cache
            holds.
        device: where the steps run.
        gpu_memory_utilization: the share of a GPU's memory to use, or of a CPU's memory after the weights for the KV
            cache.
        async_scheduling: the next step is planned and launched while one runs.
        pipeline_layers: layers of each stage; empty: there is one stage, or the engine has not chosen yet.
        speculative_config: how the next tokens are guessed; None: they are not. draft: the model that guesses them.
        keep_backup: the host memory of a sleep stays allocated, with the weights in it, for the next sleep.
        limit_mm_per_prompt: the most pictures, videos and sounds of a prompt.
    """

    served_model_name: str
    dtype: ModelDType
    max_model_len: int
    device: Literal["cpu", "cuda"]
    gpu_memory_utilization: float
    async_scheduling: bool
    pipeline_layers: tuple[int, ...]
    keep_backup: bool
    speculative_config: Speculation | None = None
    draft: DraftModel | None = None
    limit_mm_per_prompt: MediaLimits = MediaLimits()

    @property
    def max_in_flight(self) -> int:
        """Steps that may be launched before the oldest one's result is applied: one for each stage.

        Processes of a launcher wait for every result, which the last stage sends them.
        """
        if self.executor_backend == "external_launcher":
            return 2 if self.async_scheduling else 1
        return 2 if self.async_scheduling else self.pipeline_parallel_size

    @property
    def feeds_back(self) -> bool:
        """Whether a step may compute with tokens that the step before it draws; the stages of a pipeline cannot."""
        return self.async_scheduling

    @property
    def of_draft(self) -> "ResolvedConfig":
        """The options with which the draft model is loaded and run. There must be one."""
        speculation, draft = self.speculative_config, self.draft
        assert speculation is not None and draft is not None
        return replace(
            self,
            model=speculation.model,
            revision=speculation.revision,
            quantization=speculation.quantization or (draft.model.quantization if self.device == "cpu" else None),
            max_model_len=min(self.max_model_len, draft.max_model_len),
            speculative_config=None,
            draft=None,
        )

    def maps_weights(self, model: ModelConfig) -> bool:
        """Whether the first steps may read matrices in the checkpoint's files: on a CPU, if nothing converts them.

        Experts are left out: not all that reads them can.
        """
        is_alone = self.device == "cpu" and self.executor_backend == "uni" and self.load_format != "dummy"
        is_alone = is_alone and self.safetensors_load_strategy == "lazy"
        is_plain = model.encoding is None and model.family.experts is None and model.foreign is None
        return is_alone and is_plain and self.quantization is None and model.dtype == self.dtype != "float16"

    @property
    def kv_dtype(self) -> str:
        """The type of the KV cache's values: a `dtype`, 'int8' or 'fp8_e4m3'."""
        return {"auto": self.dtype, "fp8": "fp8_e4m3"}.get(self.kv_cache_dtype, self.kv_cache_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleConfig:
    """When an engine with a thread of its own sleeps by itself, and whether a request wakes it.

    Attributes:
        rungs: the ladder that `sleep_after` spells; empty: the engine never sleeps by itself.
        wakes_by_request: a request to a sleeping engine wakes it and waits.
        wake_timeout: seconds that a request waits for the engine to wake up.
        max_num_wake_waiting: the most requests that may wait so.
    """

    rungs: tuple[SleepRung, ...]
    wakes_by_request: bool
    wake_timeout: float
    max_num_wake_waiting: int

    @property
    def heeds_keep_alive(self) -> bool:
        """Whether a request may say when the engine sleeps (`keep_alive`): the next one has to be able to wake it."""
        return bool(self.rungs) or self.wakes_by_request
