"""EngineConfig: every option of an engine, checked when it is built (`engine_check`) and never changed afterwards.

`EngineConfig(...)` is what the user said. `config.resolve(model_config)` fills what depends on the model, and the
engine is built from that. Names are vLLM's where they mean the same.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from lullm.config.engine_check import check_options
from lullm.config.model import ModelConfig
from lullm.config.sleep_after import SleepRung, parse_sleep_after
from lullm.errors import ConfigError

DType = Literal["auto", "float32", "bfloat16", "float16"]
KVCacheDType = Literal["auto", "int8", "fp8", "fp8_e4m3"]
Device = Literal["auto", "cpu", "cuda"]
LoadFormat = Literal["auto", "safetensors", "dummy"]
Quantization = Literal[None, "int8", "int4"]
SchedulingPolicy = Literal["fcfs", "priority"]
PreemptionMode = Literal["recompute", "swap", "auto"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
AttentionBackend = Literal["auto", "triton", "torch"]

DEFAULT_GPU_MEMORY_UTILIZATION = 0.9

THREAD_OPTIONS = ("sleep_after", "auto_wake", "wake_timeout", "max_num_wake_waiting")
"""What only an engine with a thread of its own can do: `AsyncLLMEngine`, and so `lullm serve`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of one engine.

    Args:
        model: local folder, hub id, or 'demo' for the bundled model. revision: branch, tag or commit of a hub id.
        tokenizer: folder or hub id of the tokenizer; None: the model's.
        served_model_name: the name clients use; None: `model` as given.
        dtype: of weights, activations and KV cache. 'auto' takes the checkpoint's.
        kv_cache_dtype: half the memory of 16 bits: 'int8' on a CPU, with a scale per token and head, and 'fp8'
            ('fp8_e4m3'), with a scale per layer and head: the checkpoint's if it has some, else 1. 'auto': `dtype`,
            whatever scales the checkpoint has.
        calculate_kv_scales: find the scales of an fp8 cache that the checkpoint does not have: those of the first batch
            after the start, and after everything in the cache was given up.
        seed: of the engine: unseeded requests draw their seeds from it, so that a run can be repeated. None: random.
        max_model_len: longest sequence (prompt and output, tokens). None: the model's own limit.
        max_num_seqs: sequences in one step. max_num_batched_tokens: tokens in one step (the chunk size).
        block_size: tokens per KV block.
        kv_cache_memory_bytes: memory of the KV cache on a CPU. None: a quarter of the memory that is available after
            the weights are loaded, and no more than twice what `max_num_seqs` full-length sequences fill.
        gpu_memory_utilization: share of a GPU's memory that may be taken, by whomever; None: 0.9. Not on a CPU.
        num_gpu_blocks_override: number of KV blocks, instead of measuring.
        swap_space: GiB of host memory for blocks that are swapped out and for cached content that the KV cache has
            no room for; never more blocks than the KV cache has. 0: nothing is swapped.
        watermark: share of the blocks that admission leaves free, so that running sequences can grow.
        enable_prefix_caching: share the KV of equal prompt prefixes.
        enable_chunked_prefill: mix chunks of prompts with decodes in one step. False: the prefill-first policy; it
            needs max_num_batched_tokens of at least max_model_len. delay_factor: that policy lets prompts gather for
            this share of the last prompt step's duration.
        scheduling_policy: 'fcfs', or 'priority' (lower value first, then arrival).
        preemption_mode: what happens to a group that must give its blocks back: 'swap' moves them to the host pool,
            'recompute' computes them again, 'auto' does what is cheaper by measured speeds.
        max_logprobs: the most log-probabilities per position a request may ask for.
        logprobs_mode: 'raw_logprobs' before, 'processed_logprobs' after penalties, temperature and filters.
        enable_sleep_mode: allow `sleep` and `wake_up`. sleep_dir: folder for what must survive a sleep; None: the
            system's folder for temporary files. verify_wake: compare checksums of weights and KV after waking.
        keep_backup: on a GPU, the host memory that a sleep has filled stays taken (and pinned) after the wake-up, with
            the weights in it, so that the next sleep copies them only if they have changed. None: on a GPU.
        sleep_after: a ladder like '60s:1,10m:disk': how deep an idle engine goes to sleep by itself, and after how long
            (see `lullm.config.sleep_after`). It needs enable_sleep_mode, and an engine with a thread of its own.
        auto_wake: a request to a sleeping engine wakes it and waits, instead of being refused. None: exactly if there
            is a sleep_after. wake_timeout: seconds that such a request waits at most. max_num_wake_waiting: the most
            requests that may wait so.
        load_format: 'dummy' fills deterministic random weights instead of reading them.
        quantization: 'int8' or 'int4' stores the matrices in so many bits, quantized as the checkpoint is read
            (embedding and head in 8 bits either way); activations and KV cache keep dtype. None: as dtype says.
        threads: CPU threads that a step uses. None: OMP_NUM_THREADS if it is set, else the cores that the affinity mask
            and the CPU quota of this process allow.
        attention_backend: which version of attention runs. 'auto': the device's fastest; 'torch': torch's own, over
            gathered keys and values (decode steps are not recorded); 'triton': this package's kernels, on a GPU.
        enforce_eager: run decode steps as any other instead of recording and replaying them, one recording per batch
            size: as CUDA graphs on a GPU, as the list of native calls on a CPU. The same tokens, less quickly.
        async_scheduling: plan and launch the next step while one runs. None: on a GPU; a CPU computes either way in the
            thread that steps, and gains nothing.
        device: 'cuda' is a GPU; nothing has run on one yet, so that 'auto' is 'cpu'.

    Raises:
        ConfigError: a value is out of range. UnsupportedError: what it asks for does not exist yet.
    """

    model: str = "demo"
    revision: str | None = None
    tokenizer: str | None = None
    served_model_name: str | None = None
    dtype: DType = "auto"
    kv_cache_dtype: KVCacheDType = "auto"
    calculate_kv_scales: bool = False
    seed: int | None = 0
    max_model_len: int | None = None
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    num_gpu_blocks_override: int | None = None
    swap_space: float = 4.0
    watermark: float = 0.01
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    scheduling_policy: SchedulingPolicy = "fcfs"
    preemption_mode: PreemptionMode = "auto"
    delay_factor: float = 0.0
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    enable_sleep_mode: bool = False
    sleep_dir: str | None = None
    verify_wake: bool = True
    keep_backup: bool | None = None
    sleep_after: str | None = None
    auto_wake: bool | None = None
    wake_timeout: float = 300.0
    max_num_wake_waiting: int = 512
    threads: int | None = None
    attention_backend: AttentionBackend = "auto"
    enforce_eager: bool = False
    async_scheduling: bool | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    distributed_executor_backend: str | None = None
    load_format: LoadFormat = "auto"
    quantization: Quantization = None
    device: Device = "auto"

    def __post_init__(self) -> None:
        check_options(self)

    def check_threadless(self) -> None:
        """Return if a caller's own thread is enough for these options. Raises ConfigError otherwise."""
        for name in ("sleep_after", "auto_wake"):
            if getattr(self, name):
                raise ConfigError(
                    f"{name} needs a thread that watches the clock beside the caller's, which AsyncLLMEngine and "
                    "`lullm serve` have; here call sleep() and wake_up() yourself"
                )

    def threadless(self) -> "EngineConfig":
        """The same without the options that need a thread beside the caller's."""
        defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: defaults[name] for name in THREAD_OPTIONS})

    def with_thread_options(self, other: "EngineConfig") -> "EngineConfig":
        """The same with `other`'s options that need a thread beside the caller's."""
        return dataclasses.replace(self, **{name: getattr(other, name) for name in THREAD_OPTIONS})

    @property
    def sleep_rungs(self) -> tuple[SleepRung, ...]:
        """The ladder that `sleep_after` spells; empty: there is none."""
        return () if self.sleep_after is None else parse_sleep_after(self.sleep_after)

    @property
    def wakes_by_request(self) -> bool:
        """Whether a request to a sleeping engine wakes it."""
        return self.sleep_after is not None if self.auto_wake is None else self.auto_wake

    @property
    def kv_dtype(self) -> str:
        """The type of the KV cache's values, of a resolved config: a `dtype`, 'int8' or 'fp8_e4m3'."""
        return {"auto": self.dtype, "fp8": "fp8_e4m3"}.get(self.kv_cache_dtype, self.kv_cache_dtype)

    def resolve(self, model: ModelConfig) -> "EngineConfig":
        """The same options with 'auto' and None replaced by what the model says.

        Raises:
            ConfigError: the options do not fit the model.
        """
        max_model_len = self.max_model_len or model.max_position_embeddings
        if max_model_len > model.max_position_embeddings:
            raise ConfigError(
                f"max_model_len ({max_model_len}) is above the model's {model.max_position_embeddings} positions; "
                "lower it or leave it out"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < max_model_len:
            raise ConfigError(
                f"without chunked prefill max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_model_len ({max_model_len}): a prompt is computed in one step; lower max_model_len or raise it"
            )
        on_gpu = self.device == "cuda"
        return dataclasses.replace(
            self,
            max_model_len=max_model_len,
            dtype=model.dtype if self.dtype == "auto" else self.dtype,
            device="cuda" if on_gpu else "cpu",
            gpu_memory_utilization=(self.gpu_memory_utilization or DEFAULT_GPU_MEMORY_UTILIZATION) if on_gpu else None,
            keep_backup=(on_gpu and self.enable_sleep_mode) if self.keep_backup is None else self.keep_backup,
            async_scheduling=on_gpu if self.async_scheduling is None else self.async_scheduling,
            served_model_name=self.served_model_name or self.model,
        )

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> "EngineConfig":
        """From keyword options; an unknown one is a ConfigError that lists the known."""
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise ConfigError(
                f"unknown option {', '.join(map(repr, unknown))}; options are: {', '.join(sorted(known))}"
            )
        return cls(**options)
