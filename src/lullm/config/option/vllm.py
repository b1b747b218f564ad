"""What becomes of vLLM's engine options: those that lullm lacks, each with what it does about them.

An option of `EngineConfig` means what it means in vLLM. The names are those of vLLM 0.32. A table of docs/from-vllm.md
is made from this one.
"""

from lullm.types.vllm_argument import VllmArgument, refused, without_effect

VLLM_OPTIONS: dict[str, VllmArgument] = {
    **refused(
        "no code of a checkpoint is run; `register_model` and entry points bring models of packages",
        trust_remote_code=False,
        model_class_overrides=None,
    ),
    **refused("the tokenizer's files say what it is", tokenizer_mode="auto", skip_tokenizer_init=False),
    **refused(
        "one revision holds for the whole folder (`revision`)",
        code_revision=None,
        tokenizer_revision=None,
    ),
    **refused(
        "edit config.json; an original Qwen3-Reranker needs none, only convert='rerank'",
        hf_overrides=None,
        hf_config_path=None,
        config_format="auto",
    ),
    **refused(
        "the folder's modules.json says how to pool; `PoolingParams` change the rest",
        pooler_config=None,
        override_pooler_config=None,
    ),
    **refused("leave it out, or use runner='pooling' and convert", task=None),
    **refused("set HF_HOME or HF_HUB_CACHE in the environment", download_dir=None),
    **refused("set HF_TOKEN in the environment", hf_token=None),
    **refused("the model's own defaults hold; give `SamplingParams`", generation_config="auto"),
    **refused("give `SamplingParams`, or edit generation_config.json", override_generation_config=None),
    **refused(
        "LoRA adapters are not there yet; merge them into the checkpoint", enable_lora=False, default_mm_loras=None
    ),
    **without_effect(
        "it only tunes LoRA, which is refused by `enable_lora`",
        *("max_loras", "max_lora_rank", "max_cpu_loras", "lora_dtype", "fully_sharded_loras", "lora_target_modules"),
    ),
    **refused(
        "speculative decoding is not there yet",
        speculative_config=None,
        speculative_model=None,
        num_speculative_tokens=None,
        spec_method=None,
        spec_model=None,
        spec_tokens=None,
    ),
    **refused("weights stay in memory while the engine is awake; use quantization='int8' or 'int4'", cpu_offload_gb=0),
    **refused("use `swap_space`, which holds cached blocks as well", kv_offloading_size=None),
    **refused("prefixes are not passed between engines", kv_transfer_config=None, kv_events_config=None),
    **refused(
        "hand a request's params `structured_outputs`; the only backend is llguidance", guided_decoding_backend=None
    ),
    **refused("the only backend of structured outputs is llguidance", structured_outputs_config=None),
    **refused("bring methods along by `worker_extension_cls`, or a `distributed_executor_backend`", worker_cls="auto"),
    **refused("the scheduler cannot be replaced", scheduler_cls=None),
    **refused("bias logits by `logit_bias`, `allowed_token_ids` or `bad_words`", logits_processors=None),
    **refused("prompts are text or token ids", enable_prompt_embeds=False),
    **refused("use LLM.start_profile(folder)", profiler_config=None),
    **refused(
        "`distributed_executor_backend` 'ray' or 'external_launcher' has workers on several machines",
        nnodes=1,
        node_rank=0,
        worker_use_ray=False,
    ),
    **refused(
        "workers share layers, heads and experts, not contexts",
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
    ),
    **refused("`data_parallel_size` has replicas behind one client", data_parallel_rank=None),
    **refused("CUDA_VISIBLE_DEVICES chooses", device_ids=None),
    **refused("LLM.rebalance_experts() moves experts, on request", enable_eplb=False, eplb_config=None),
    **refused("steps are planned one by one", num_scheduler_steps=1, num_lookahead_slots=0),
    **refused("a prompt's chunks are bounded by `max_num_batched_tokens`", long_prefill_token_threshold=0),
    **refused("`max_num_seqs` bounds the running sequences", max_num_active_seqs=None),
    **refused(
        "the server bounds its queue by --max-queued-requests", max_num_queued_reqs=None, max_num_queued_tokens=None
    ),
    **refused("windows belong to the model; a shorter max_model_len leaves them unused", disable_sliding_window=False),
    **refused("`lullm serve --otlp-traces-endpoint` traces", otlp_traces_endpoint=None, collect_detailed_traces=None),
    **refused(
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
    **without_effect(
        "models of text and pictures are loaded without their tower", "language_model_only", "skip_mm_profiling"
    ),
    **without_effect("there is nothing to cache without pictures", "mm_processor_cache_gb", "mm_processor_cache_type"),
    **without_effect("steps are recorded by themselves; `enforce_eager` leaves it away", "max_seq_len_to_capture"),
    **without_effect(
        "nothing is compiled: kernels are there from the install, and decode steps are recorded in milliseconds",
        *("compilation_config", "optimization_level", "cudagraph_capture_sizes", "max_cudagraph_capture_size"),
        *("performance_mode", "enable_flashinfer_autotune", "jit_monitor_mode"),
    ),
    **without_effect(
        "`lullm.log` and /metrics are there without it",
        *("disable_log_stats", "disable_log_requests", "enable_log_requests", "use_tqdm_on_load", "kv_cache_metrics"),
    ),
    **without_effect(
        "lullm chooses by itself",
        *("disable_custom_all_reduce", "ray_workers_use_nsight", "max_parallel_loading_workers"),
        *("data_parallel_backend", "distributed_timeout_seconds", "all2all_backend", "moe_backend", "linear_backend"),
    ),
    **without_effect("prefixes are hashed by blake2b", "prefix_caching_hash_algo"),
    **without_effect("there is one block manager", "use_v2_block_manager", "disable_hybrid_kv_cache_manager"),
    **without_effect(
        "files are read in parallel into their place", "safetensors_load_strategy", "pt_load_map_location"
    ),
    **without_effect("tokens are streamed as they come", "stream_interval"),
}
