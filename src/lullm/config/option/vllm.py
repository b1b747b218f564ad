"""What becomes of vLLM's options: those that lullm lacks, each with what it does about them.

An option of `EngineConfig` means what it means in vLLM. Another one of vLLM's passes with the value that asks for
nothing, or always where it could change nothing here; otherwise it is refused with what to do instead. The names are
those of vLLM 0.32. A table of docs/from-vllm.md is made from this one.
"""

from dataclasses import dataclass
from typing import Any

from lullm.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class VllmOption:
    """One option that `EngineConfig` lacks.

    Attributes:
        default: vLLM's; it asks for nothing, as None does.
        advice: what to do instead, or why the option changes nothing.
        passes: any value is accepted, because none could change anything here.
    """

    default: Any
    advice: str
    passes: bool = False


def _group(advice: str, **defaults: Any) -> dict[str, VllmOption]:
    return {name: VllmOption(default, advice) for name, default in defaults.items()}


def _without_effect(reason: str, *names: str) -> dict[str, VllmOption]:
    return {name: VllmOption(None, reason, passes=True) for name in names}


VLLM_OPTIONS: dict[str, VllmOption] = {
    **_group(
        "no code of a checkpoint is run; `register_model` and entry points bring models of packages",
        trust_remote_code=False,
        model_class_overrides=None,
    ),
    **_group("the tokenizer's files say what it is", tokenizer_mode="auto", skip_tokenizer_init=False),
    **_group(
        "one revision holds for the whole folder (`revision`)",
        code_revision=None,
        tokenizer_revision=None,
    ),
    **_group(
        "edit config.json; an original Qwen3-Reranker needs none, only convert='rerank'",
        hf_overrides=None,
        hf_config_path=None,
        config_format="auto",
    ),
    **_group(
        "the folder's modules.json says how to pool; `PoolingParams` change the rest",
        pooler_config=None,
        override_pooler_config=None,
    ),
    **_group("leave it out, or use runner='pooling' and convert", task=None),
    **_group("set HF_HOME or HF_HUB_CACHE in the environment", download_dir=None),
    **_group("set HF_TOKEN in the environment", hf_token=None),
    **_group("the model's own defaults hold; give `SamplingParams`", generation_config="auto"),
    **_group("give `SamplingParams`, or edit generation_config.json", override_generation_config=None),
    **_group(
        "LoRA adapters are not there yet; merge them into the checkpoint", enable_lora=False, default_mm_loras=None
    ),
    **_without_effect(
        "it only tunes LoRA, which is refused by `enable_lora`",
        *("max_loras", "max_lora_rank", "max_cpu_loras", "lora_dtype", "fully_sharded_loras", "lora_target_modules"),
    ),
    **_group(
        "speculative decoding is not there yet",
        speculative_config=None,
        speculative_model=None,
        num_speculative_tokens=None,
        spec_method=None,
        spec_model=None,
        spec_tokens=None,
    ),
    **_group("weights stay in memory while the engine is awake; use quantization='int8' or 'int4'", cpu_offload_gb=0),
    **_group("use `swap_space`, which holds cached blocks as well", kv_offloading_size=None),
    **_group("prefixes are not passed between engines", kv_transfer_config=None, kv_events_config=None),
    **_group(
        "hand a request's params `structured_outputs`; the only backend is llguidance", guided_decoding_backend=None
    ),
    **_group("the only backend of structured outputs is llguidance", structured_outputs_config=None),
    **_group("bring methods along by `worker_extension_cls`, or a `distributed_executor_backend`", worker_cls="auto"),
    **_group("the scheduler cannot be replaced", scheduler_cls=None),
    **_group("bias logits by `logit_bias`, `allowed_token_ids` or `bad_words`", logits_processors=None),
    **_group("prompts are text or token ids", enable_prompt_embeds=False),
    **_group("use LLM.start_profile(folder)", profiler_config=None),
    **_group(
        "`distributed_executor_backend` 'ray' or 'external_launcher' has workers on several machines",
        nnodes=1,
        node_rank=0,
        worker_use_ray=False,
    ),
    **_group(
        "workers share layers, heads and experts, not contexts",
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
    ),
    **_group("`data_parallel_size` has replicas behind one client", data_parallel_rank=None),
    **_group("CUDA_VISIBLE_DEVICES chooses", device_ids=None),
    **_group("LLM.rebalance_experts() moves experts, on request", enable_eplb=False, eplb_config=None),
    **_group("steps are planned one by one", num_scheduler_steps=1, num_lookahead_slots=0),
    **_group("a prompt's chunks are bounded by `max_num_batched_tokens`", long_prefill_token_threshold=0),
    **_group("`max_num_seqs` bounds the running sequences", max_num_active_seqs=None),
    **_group(
        "the server bounds its queue by --max-queued-requests", max_num_queued_reqs=None, max_num_queued_tokens=None
    ),
    **_group("windows belong to the model; a shorter max_model_len leaves them unused", disable_sliding_window=False),
    **_group("`lullm serve --otlp-traces-endpoint` traces", otlp_traces_endpoint=None, collect_detailed_traces=None),
    **_group(
        "lullm takes text only",
        limit_mm_per_prompt=None,
        mm_processor_kwargs=None,
        media_io_kwargs=None,
        allowed_local_media_path="",
        allowed_media_domains=None,
        mm_encoder_only=False,
        enable_mm_embeds=False,
        interleave_mm_strings=False,
    ),
    **_without_effect(
        "models of text and pictures are loaded without their tower", "language_model_only", "skip_mm_profiling"
    ),
    **_without_effect("there is nothing to cache without pictures", "mm_processor_cache_gb", "mm_processor_cache_type"),
    **_without_effect("steps are recorded by themselves; `enforce_eager` leaves it away", "max_seq_len_to_capture"),
    **_without_effect(
        "nothing is compiled: kernels are there from the install, and decode steps are recorded in milliseconds",
        *("compilation_config", "optimization_level", "cudagraph_capture_sizes", "max_cudagraph_capture_size"),
        *("performance_mode", "enable_flashinfer_autotune", "jit_monitor_mode"),
    ),
    **_without_effect(
        "`lullm.log` and /metrics are there without it",
        *("disable_log_stats", "disable_log_requests", "enable_log_requests", "use_tqdm_on_load", "kv_cache_metrics"),
    ),
    **_without_effect(
        "lullm chooses by itself",
        *("disable_custom_all_reduce", "ray_workers_use_nsight", "max_parallel_loading_workers"),
        *("data_parallel_backend", "distributed_timeout_seconds", "all2all_backend", "moe_backend", "linear_backend"),
    ),
    **_without_effect("prefixes are hashed by blake2b", "prefix_caching_hash_algo"),
    **_without_effect("there is one block manager", "use_v2_block_manager", "disable_hybrid_kv_cache_manager"),
    **_without_effect(
        "files are read in parallel into their place", "safetensors_load_strategy", "pt_load_map_location"
    ),
    **_without_effect("tokens are streamed as they come", "stream_interval"),
}


def without_vllm_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options without those of vLLM that ask for nothing here.

    Raises:
        UnsupportedError: one asks for something; says what to do instead.
    """
    for name, value in options.items():
        option = VLLM_OPTIONS.get(name)
        if option is None or option.passes or value is None or _is_default(option, value):
            continue
        raise UnsupportedError(f"{name}={value!r} is not supported: {option.advice}")
    return {name: value for name, value in options.items() if name not in VLLM_OPTIONS}


def _is_default(option: VllmOption, value: object) -> bool:
    """Whether a value asks for nothing: vLLM's default, or an empty text, list or dict where that is None."""
    if option.default is None:
        return value in ("", {}, [], ())
    return type(value) is type(option.default) and bool(value == option.default)
