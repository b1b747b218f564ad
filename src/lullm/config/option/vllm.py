"""vLLM's engine options that lullm lacks, and the treatment of each.

An option of `EngineConfig` has vLLM's meaning. The names are those of vLLM 0.33. Tables of docs/from-vllm.md are made
from these.
"""

from lullm.types.vllm_argument import VllmArgument, refused, without_effect

VLLM_OPTIONS: dict[str, VllmArgument] = {
    **refused(
        "no code of a checkpoint is run; `register_model` and entry points bring models of packages",
        model_class_overrides=None,
    ),
    **without_effect(
        "no code of a checkpoint is run, so there is nothing to trust; `register_model` and entry points bring models "
        "of packages",
        trust_remote_code=False,
    ),
    **without_effect(
        "the folder's files say it; Mistral's own layout (params.json, tekken.json) is found by them",
        tokenizer_mode="auto",
        config_format="auto",
    ),
    **refused("the tokenizer's files say what it is", skip_tokenizer_init=False),
    **refused("one revision holds for the whole folder (`revision`)", code_revision=None, tokenizer_revision=None),
    **refused("edit config.json, or give `hf_overrides`", hf_config_path=None),
    **refused(
        "the folder's modules.json says how to pool; `PoolingParams` change the rest",
        pooler_config=None,
        override_pooler_config=None,
    ),
    **refused("leave it out, or use runner='pooling' and convert", task=None),
    **refused("set HF_HOME or HF_HUB_CACHE in the environment", download_dir=None),
    **refused("set HF_TOKEN in the environment", hf_token=None),
    **refused("a request names its adapter (`lora_request`)", default_mm_loras=None),
    **refused("adapters change the text model's layers alone", enable_tower_connector_lora=False),
    **refused("adapters have the type of the activations", lora_dtype="auto"),
    **refused("adapters of experts are not there", enable_mixed_moe_lora_format=False, enable_moe_shared_loras=False),
    **refused("every layer that may have adapters gets places", lora_target_modules=None),
    **without_effect(
        "adapters are cut as their layers are, and a step computes those of its rows alone",
        fully_sharded_loras=False,
        specialize_active_lora=False,
    ),
    **refused("adapters of heads are not there", max_lora_cls_labels=None),
    **refused(
        "say it in `speculative_config`: a model, or method ngram or suffix, and num_speculative_tokens",
        speculative_model=None,
        num_speculative_tokens=None,
        spec_method=None,
        spec_model=None,
        spec_tokens=None,
    ),
    **refused(
        "weights stay in memory while the engine is awake; use quantization='int8' or 'int4'",
        cpu_offload_gb=0,
        offload_backend="auto",
        offload_group_size=0,
        cpu_offload_params=(),
        offload_params=(),
    ),
    **refused(
        "use `swap_space`, which holds cached blocks as well", kv_offloading_size=None, kv_offloading_backend="native"
    ),
    **refused("prefixes are not passed between engines", kv_transfer_config=None, kv_events_config=None),
    **refused("rows of pictures are not passed between engines", ec_transfer_config=None, ec_manager_config=None),
    **refused(
        "hand a request's params `structured_outputs`; the only backend is llguidance", guided_decoding_backend=None
    ),
    **refused("the only backend of structured outputs is llguidance", structured_outputs_config=None),
    **refused("bring methods along by `worker_extension_cls`, or a `distributed_executor_backend`", worker_cls="auto"),
    **refused("the scheduler cannot be replaced", scheduler_cls=None),
    **refused("bias logits by `logit_bias`, `allowed_token_ids` or `bad_words`", logits_processors=None),
    **refused("use LLM.start_profile(folder)", profiler_config=None, enable_layerwise_nvtx_tracing=False),
    **refused(
        "append these tokens to the prompt and ask for `prompt_logprobs`: they come as if drawn",
        enable_trace_replay=False,
    ),
    **refused("outputs do not say which tokens could be drawn; `logprobs` do", return_sampling_mask=False),
    **refused("there are no watermarks", watermark_config=None),
    **refused("tokens are drawn one after the other", diffusion_config=None),
    **refused(
        "no plugin stands before or behind the model; change prompts and outputs yourself", io_processor_plugin=None
    ),
    **refused("`model` names the folder that has config.json and the weights", model_weights=""),
    **refused("`step_timeout` and `worker_timeout` end what hangs", watchdog_config=None),
    **refused("`restart_workers` replaces lost workers", fault_tolerance_config=None, enable_fault_tolerance=False),
    **refused("the buckets of /metrics are fixed", custom_histogram_buckets=None),
    **refused("all weights sleep, or none (`sleep(tags=...)`)", sleep_preserve_parameter_names=()),
    **without_effect("no environment variable of vLLM is read", fail_on_environ_validation=False),
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
        "files are decoded without options; fps or num_frames in mm_processor_kwargs say what of a video is read",
        media_io_kwargs=None,
    ),
    **refused(
        "all rows of a video are kept; fps or num_frames in mm_processor_kwargs make fewer of them",
        video_pruning_rate=None,
    ),
    **refused("pictures come as pictures, not as rows of numbers", mm_encoder_only=False, enable_mm_embeds=False),
    **refused("the chat template says where pictures stand", interleave_mm_strings=False),
    **without_effect("one tile is read at a time, which takes little memory", skip_mm_profiling=False),
    **without_effect(
        "tiles of pictures are read once while they are needed; there is no more to tune",
        *("mm_processor_cache_gb", "mm_processor_cache_type", "mm_shm_cache_max_object_size_mb", "mm_hasher_algorithm"),
        *("mm_encoder_tp_mode", "mm_encoder_attn_backend", "mm_processor_device", "mm_tensor_ipc"),
        "video_pruning_method",
        disable_chunked_mm_input=False,
        enable_mm_processor_stats=False,
    ),
    **without_effect("steps are recorded by themselves; `enforce_eager` leaves it away", "max_seq_len_to_capture"),
    **without_effect(
        "nothing is compiled: kernels are there from the install, and decode steps are recorded in milliseconds",
        *("compilation_config", "optimization_level", "max_cudagraph_capture_size", "performance_mode"),
        *("jit_monitor_mode", "kernel_config", "ir_op_priority"),
        cudagraph_capture_sizes=(),
        enable_flashinfer_autotune=False,
        cudagraph_metrics=False,
        jit_monitor_verbose=False,
    ),
    **without_effect(
        "`lullm.log` and /metrics are there without it",
        *("kv_cache_metrics_sample", "show_hidden_metrics_for_version", "per_request_spec_decode_metrics"),
        disable_log_stats=False,
        disable_log_requests=False,
        enable_log_requests=False,
        aggregate_engine_logging=False,
        use_tqdm_on_load=True,
        kv_cache_metrics=False,
        enable_mfu_metrics=False,
        enable_logging_iteration_details=False,
    ),
    **without_effect(
        "lullm chooses by itself",
        *("max_parallel_loading_workers", "data_parallel_backend", "distributed_timeout_seconds", "all2all_backend"),
        *("moe_backend", "linear_backend", "attention_config", "mamba_backend", "mamba_ssu_algorithm"),
        *("gdn_prefill_backend", "kda_prefill_backend", "kda_decode_backend", "cpu_distributed_timeout_seconds"),
        *("expert_placement_strategy", "dcp_comm_backend", "sparse_indexer_topk_backend", "dp_sync_interval"),
        *("dcp_kv_cache_interleave_size", "cp_kv_cache_interleave_size", "dcp_q_replicate", "ubatch_size"),
        *("dbo_decode_token_threshold", "dbo_prefill_token_threshold", "elastic_ep_max_dp_size"),
        *("offload_num_in_group", "offload_prefetch_step", "long_prefill_token_threshold_adaptive"),
        *("scheduler_reserve_full_isl", "prefill_schedule_interval", "prefix_cache_retention_interval"),
        *("prefix_match_unit", "kv_sharing_fast_prefill", "swa_bounded_replay", "enable_batch_sharded_sampling"),
        *("enable_mamba_shared_prefix_checkpoint", "use_replayssm", "replayssm_buffer_len", "monokernel"),
        *("enable_hc_sp", "enable_ep_weight_filter", "enable_nccl_comm_suspend"),
        disable_custom_all_reduce=False,
        ray_workers_use_nsight=False,
        disable_cascade_attn=False,
        disable_nccl_for_dp_synchronization=False,
        enable_shm_tensor_arena=False,
    ),
    **without_effect(
        "each worker keeps to its share of the cores and to their memory",
        "numa_bind_nodes",
        "numa_bind_cpus",
        numa_bind=False,
    ),
    **without_effect("prefixes are hashed by blake2b", "prefix_caching_hash_algo"),
    **without_effect("there is one block manager", use_v2_block_manager=False, disable_hybrid_kv_cache_manager=False),
    **without_effect(
        "files are read in parallel into their place",
        *("pt_load_map_location", "model_loader_extra_config"),
        *("safetensors_prefetch_num_threads", "safetensors_prefetch_block_size"),
    ),
    **refused("tensors are taken from every safetensors file of the folder; remove the others", ignore_patterns=None),
    **refused("a quantized checkpoint says itself how, and `quantization` is int8 or int4", quantization_config=None),
    **refused(
        "states are kept in the type that their model computes in",
        mamba_cache_dtype="auto",
        mamba_ssm_cache_dtype="auto",
        enable_mamba_cache_stochastic_rounding=False,
    ),
    **refused("towers compute in the model's type", mm_encoder_attn_dtype=None, mm_encoder_fp8_scale_path=None),
    **refused("towers compute in the model's type", mm_encoder_fp8_scale_save_path=None),
    **without_effect("towers compute in the model's type", "mm_encoder_fp8_scale_save_margin"),
    **refused("no model has Engram's embeddings here", engram_config=None),
    **refused("states are kept in the type that their model computes in", mamba_config=None),
    **without_effect("states are kept in the type that their model computes in", "mamba_cache_philox_rounds"),
    **without_effect("pictures are prepared on the CPU", "mm_ipc_gpu_memory_gb", "mm_device_do_normalize"),
    **without_effect("draws take float32, and do not depend on the batch", use_fp64_gumbel=False),
    **without_effect("a quantized checkpoint says itself how", allow_deprecated_quantization=False),
    **refused("`kv_cache_dtype` holds for all layers", kv_cache_dtype_skip_layers=None),
    **refused(
        "blocks hold as many tokens of a state as `block_size` says", mamba_block_size=None, mamba_cache_mode="none"
    ),
    **refused("`max_num_batched_tokens` bounds a step", max_num_scheduled_tokens=None),
    **refused("one batch is computed at a time", enable_dbo=False),
    **refused(
        "`data_parallel_size` has all replicas on this machine, behind one client",
        data_parallel_size_local=None,
        data_parallel_start_rank=None,
        data_parallel_address=None,
        data_parallel_rpc_port=None,
        data_parallel_external_lb=False,
        data_parallel_hybrid_lb=False,
        data_parallel_multi_port_external_lb=False,
        enable_elastic_ep=False,
    ),
    **without_effect("`nnodes` is refused, so there is no other node to find", "master_addr", "master_port"),
    **refused("`thinking_token_budget` of `SamplingParams` bounds thoughts", reasoning_config=None),
    **refused("`reasoning_parser` names one of docs/thinking.md; more cannot be loaded", reasoning_parser_plugin=None),
    **refused("bring methods along by `worker_extension_cls`, or call LLM.update_weights", weight_transfer_config=None),
    **refused(
        "set up `logging` yourself, or give `lullm serve --log-level`", logging_config=None, log_config_file=None
    ),
    **refused("there are no other platforms with options of their own", additional_config=None),
    **refused("an arena gives recordings' memory back with the KV cache", sleep_mode_offload_cudagraph=False),
    **without_effect(
        "arenas give memory back with `enable_sleep_mode` alone", "sleep_mode_backend", enable_cumem_allocator=False
    ),
    **refused(
        "outputs do not say which experts were used; LLM.expert_load() counts them",
        enable_return_routed_experts=False,
        aux_output_config=None,
    ),
    **without_effect("tokens are streamed as they come", "stream_interval"),
}

VLLM_SERVER_OPTIONS: dict[str, VllmArgument] = {
    **refused("name each origin by --allowed-origin ORIGIN, or '*'", allowed_origins=()),
    **refused("--allowed-origin lets browsers send every header and method, no cookies", allow_credentials=False),
    **without_effect(
        "--allowed-origin lets browsers send every header and method", "allowed_methods", "allowed_headers"
    ),
    **without_effect("contents are joined to text, which every template takes", "chat_template_content_format"),
    **refused("the role of answers is assistant", response_role="assistant"),
    **refused("a request's return_tokens_as_token_ids names tokens by their ids", return_tokens_as_token_ids=False),
    **refused("--tool-call-parser names one of docs/tools.md; more cannot be loaded", tool_parser_plugin=None),
    **without_effect("models may always call tools", enable_auto_tool_choice=False),
    **refused("tools are the client's; the server calls none", tool_server=None),
    **refused(
        "a request with tool_choice 'none' shows no tools to the template", exclude_tools_when_tool_choice_none=True
    ),
    **without_effect(
        "answers always say how many tokens of the prompt were cached", enable_prompt_tokens_details=False
    ),
    **without_effect("/metrics counts what runs and what waits", enable_server_load_tracking=False),
    **without_effect("a silent stream gets a comment each 10 s", "sse_keep_alive_interval"),
    **without_effect("one thread of the server speaks HTTP", "api_server_count", "renderer_num_workers"),
    **refused("put a proxy in front that answers under this path", root_path=None),
    **refused("put a proxy in front", middleware=()),
    **refused("SIGHUP makes the server read its certificate anew", enable_ssl_refresh=False),
    **refused("TLS takes the ciphers of this machine's OpenSSL", ssl_ciphers=None),
    **refused("a request cannot bring a template; --chat-template does", trust_request_chat_template=False),
    **refused("--log-level says how much is logged", uvicorn_log_level="info", log_level=None),
    **without_effect("--log-level warning leaves requests out of the log", disable_uvicorn_access_log=False),
    **without_effect("--log-level warning leaves requests out of the log", "disable_access_log_for_endpoints"),
    **refused("answers are not logged", enable_log_outputs=False),
    **without_effect("answers are not logged", enable_log_deltas=True),
    **refused("/docs is part of the server", disable_fastapi_docs=False),
    **without_effect("/docs needs no other host", enable_offline_docs=False),
    **without_effect("/tokenizer_info is there", enable_tokenizer_info_endpoint=False),
    **refused("the server speaks HTTP alone", grpc=False, grpc_port=None),
    **refused("every node would need a client of its own; lullm serves from one", headless=False),
    **refused("prompts are text or token ids on every endpoint", tokens_only=False),
    **without_effect(
        "all replicas are behind one server", "data_parallel_supervisor_port", "dp_supervisor_probe_failure_threshold"
    ),
    **without_effect(
        "all replicas are behind one server", "dp_supervisor_probe_interval_s", "dp_supervisor_probe_timeout_s"
    ),
    **without_effect("the server bounds headers by itself", "h11_max_incomplete_event_size", "h11_max_header_count"),
    **without_effect("scores of pairs are computed in batches", enable_flash_late_interaction=True),
    **without_effect("a request's mm_processor_kwargs are checked", trust_request_mm_kwargs=False),
    **refused("the template reads a request's reasoning_effort as it stands", reasoning_effort_map=None),
    **refused("a tool's own `strict` says whether its calls follow the schema", tool_strict_level=None),
    **refused("the log has the times of each request, /metrics their distributions", enable_per_request_metrics=False),
    **without_effect("there is no endpoint of Cohere's chats", "cohere_format", cohere_is_reasoning_model=True),
    **refused("a message's `thinking` says whether the model thinks", anthropic_disabled_thinking_effort="auto"),
    **without_effect("errors that are not a caller's are logged with their stack", log_error_stack=False),
    **refused("prompts are rendered and answered by one server", enable_scale_out=False),
    **without_effect("answers have no system_fingerprint", "fingerprint_mode", "fingerprint_value"),
    **refused("--drain-timeout says how long running requests get at the end", shutdown_timeout=0),
}
"""Flags of `vllm serve` beside the engine's."""

ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("model_path", "model_name_or_path", "pretrained_model_name_or_path"), "model"),
    **dict.fromkeys(("n_ctx", "context_length", "num_ctx"), "max_model_len"),
    **dict.fromkeys(("n_threads", "num_thread"), "threads"),
    **dict.fromkeys(("n_batch", "n_ubatch", "chunked_prefill_size"), "max_num_batched_tokens"),
    **dict.fromkeys(("n_gpu_layers", "num_gpu", "device_map"), "device"),
    **dict.fromkeys(("type_k", "type_v"), "kv_cache_dtype"),
    **dict.fromkeys(("load_in_4bit", "load_in_8bit"), "quantization"),
    **dict.fromkeys(("n_parallel", "max_running_requests"), "max_num_seqs"),
    "torch_dtype": "dtype",
    "tp_size": "tensor_parallel_size",
    "dp_size": "data_parallel_size",
    "mem_fraction_static": "gpu_memory_utilization",
    "keep_alive": "sleep_after",
}
"""Option of llama-cpp-python, transformers, Ollama or SGLang -> lullm's most similar one."""
