"""Refuses options that do not go together, do not fit the model, or do not exist yet, before anything is built."""

from collections.abc import Mapping

from lullm.config.generation import parse_override
from lullm.config.json_file import option_object
from lullm.config.model import ModelConfig
from lullm.config.option.option import options_of
from lullm.config.option.pictures import check_hosts, parse_limits
from lullm.config.option.speculation import parse_speculation
from lullm.config.parallel.cut import check_stages
from lullm.config.parallel.share import share_of
from lullm.config.user_option import UserOptions
from lullm.errors import ConfigError, LullmError, UnsupportedError
from lullm.types.layer_kind import FullAttention, Nothing, RecurrentState, SharedAttention
from lullm.types.parallel.placement import Axis
from lullm.types.wire.importable import is_importable_name

_BACKENDS = ("uni", "mp", "ray", "external_launcher")
_OF_PROCESSES = ("worker_timeout", "step_timeout", "restart_workers")


def check_agreement(options: UserOptions) -> None:
    """Check that the options, each valid by itself, go together. Raises ConfigError, UnsupportedError."""
    _check_together(options)
    _check_workers(options)
    _check_adapters(options)
    _check_sleep_options(options)
    _check_launched(options)
    refuse_missing_machinery(options)


def refuse_known_names(options: UserOptions) -> None:
    """Raises UnsupportedError, with an explanation: a value exists elsewhere and is not supported here."""
    device, kv_cache_dtype, backend = options.device, options.kv_cache_dtype, options.attention_backend
    if str(device).partition(":")[0] in ("npu", "ascend"):
        raise UnsupportedError(
            f"device={device!r} is not supported: there are arenas for Ascend memory, but neither ops nor a "
            "device for its steps; use device='cpu'"
        )
    if str(kv_cache_dtype) in ("fp8_e5m2", "fp8_inc", "fp8_ds_mla"):
        raise UnsupportedError(f"kv_cache_dtype={kv_cache_dtype!r} is not supported: use fp8_e4m3 ('fp8')")
    if str(backend) in ("flashinfer", "flash-attn"):
        raise UnsupportedError(f"attention_backend={backend!r} is not supported yet: use auto, triton or torch")


def _check_together(options: UserOptions) -> None:
    """Check options against each other."""
    if options.max_num_batched_tokens < options.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({options.max_num_batched_tokens}) must be at least max_num_seqs "
            f"({options.max_num_seqs}): every running sequence needs one token per step"
        )
    parse_override(options.override_generation_config)
    option_object("hf_overrides", options.hf_overrides)
    option_object("mm_processor_kwargs", options.mm_processor_kwargs)
    parse_limits(options.limit_mm_per_prompt)
    check_hosts(options.allowed_media_domains)
    _check_speculation(options)
    if options.delay_factor and options.enable_chunked_prefill:
        raise ConfigError("delay_factor belongs to the prefill-first policy; set enable_chunked_prefill=False too")
    if options.batch_invariant and options.attention_backend == "torch":
        raise ConfigError("batch_invariant needs lullm's own attention, not attention_backend='torch': use auto")
    if options.preemption_mode == "swap" and options.swap_space == 0:
        raise ConfigError("preemption_mode='swap' needs swap_space above 0")
    if options.calculate_kv_scales and options.kv_cache_dtype not in ("fp8", "fp8_e4m3"):
        raise ConfigError(
            f"calculate_kv_scales needs kv_cache_dtype='fp8', not {options.kv_cache_dtype!r}, which has no such scales"
        )


def _check_workers(options: UserOptions) -> None:
    check_stages(options.pipeline_layers, options.pipeline_parallel_size, bool(options.async_scheduling))
    if options.executor_backend == "uni" and options.num_workers > 1:
        raise ConfigError(f"distributed_executor_backend='uni' runs one worker, not {options.num_workers}: use 'mp'")
    if options.executor_backend == "uni":
        alone = _OF_PROCESSES if options.data_parallel_size == 1 else ("step_timeout", "restart_workers")
        _check_defaults(options, alone, "worker processes: distributed_executor_backend='mp'")
    if options.executor_backend == "ray":
        _check_defaults(options, ("restart_workers",), "processes of this machine: distributed_executor_backend='mp'")
    if options.enable_expert_parallel and options.tensor_parallel_size == 1:
        raise ConfigError("enable_expert_parallel deals the experts to workers: set tensor_parallel_size, too")


def _check_adapters(options: UserOptions) -> None:
    if not options.enable_lora:
        _check_defaults(options, ("max_loras", "max_lora_rank", "max_cpu_loras"), "enable_lora=True")
    if not options.enable_prompt_adapter:
        _check_defaults(options, ("max_prompt_adapters", "max_prompt_adapter_token"), "enable_prompt_adapter=True")
    if options.num_kept_loras < options.max_loras:
        raise ConfigError(
            f"max_cpu_loras ({options.max_cpu_loras}) must be at least max_loras ({options.max_loras}): adapters in "
            "use are kept in host memory, too"
        )


def _check_speculation(options: UserOptions) -> None:
    speculation = parse_speculation(options.speculative_config)
    if speculation is None:
        return
    if options.async_scheduling:
        raise ConfigError(
            "speculative_config does not go with async_scheduling=True: how many guesses are right must be known "
            "before the next step is planned; leave one of them out"
        )
    if speculation.adaptive and options.distributed_executor_backend == "external_launcher":
        raise ConfigError(
            "speculative_config: adaptive does not go with distributed_executor_backend='external_launcher': each "
            "process has a clock of its own; say \"adaptive\": false, or take 'mp'"
        )
    if speculation.method != "draft_model":
        return
    if options.pipeline_parallel_size > 1:
        raise UnsupportedError(
            "speculative_config: a draft model does not go with pipeline_parallel_size: it would run on the last stage "
            "alone; use tensor_parallel_size, or method ngram"
        )
    if speculation.quantization is not None and options.device == "cuda":
        raise UnsupportedError(
            f"speculative_config: quantization={speculation.quantization!r} is not supported on a GPU yet: there are "
            "no kernels for it; use a CPU, or leave it out"
        )
    if speculation.draft_tensor_parallel_size not in (None, options.tensor_parallel_size):
        raise UnsupportedError(
            f"speculative_config: the workers share the draft model as they share the model: "
            f"draft_tensor_parallel_size={speculation.draft_tensor_parallel_size} is not supported with "
            f"tensor_parallel_size={options.tensor_parallel_size}; leave it out"
        )


def check_draft(options: UserOptions, model: ModelConfig, draft: ModelConfig, name: str) -> None:
    """Check that the draft model `name` can guess the tokens of `model`. Raises ConfigError, UnsupportedError."""
    if draft.vocab_size != model.vocab_size:
        raise ConfigError(
            f"speculative_config: the draft model {name} has {draft.vocab_size} token ids, and the model has "
            f"{model.vocab_size}: they must have the same; take a smaller model of the same family"
        )
    if not draft.generates:
        raise ConfigError(f"speculative_config: the draft model {name} gives no next tokens")
    if not any(isinstance(kind, FullAttention) for kind in model.layer_kinds):
        raise UnsupportedError(
            f"speculative_config: {model.architecture} frees all blocks that leave its windows, and a draft model "
            "needs them; use method ngram"
        )
    kinds = {kind for kind in draft.layer_kinds if not isinstance(kind, Nothing | SharedAttention)}
    if draft.foreign is not None or len(kinds) != 1 or not isinstance(next(iter(kinds)), FullAttention):
        raise UnsupportedError(
            f"speculative_config: the draft model {name} ({draft.architecture}) is not one of lullm's own families "
            "with full attention in all layers, which can share the blocks of another model; take such a one"
        )
    if any(cache in options.kv_cache_dtype for cache in draft.refused_caches):
        raise ConfigError(
            f"kv_cache_dtype={options.kv_cache_dtype!r} is not there for the draft model {name}; leave it out"
        )
    share_of(draft, Axis(0, options.tensor_parallel_size))


def check_for_model(options: UserOptions, model: ModelConfig) -> None:
    """Check options that need lullm's own layers, a cache of keys and values, or sizes that workers can share.

    Raises ConfigError, UnsupportedError.
    """
    if model.encoder is not None:
        _check_encoder_decoder(options, model)
    share_of(model, Axis(0, options.tensor_parallel_size), options.enable_expert_parallel)
    if model.family.encoder_only is not None:
        _check_encoder_only(options, model)
    if options.speculative_config is not None and any(isinstance(kind, RecurrentState) for kind in model.layer_kinds):
        raise UnsupportedError(
            f"speculative_config is not there for {model.architecture}: the state of its recurrent layers cannot go "
            "back when a guess is wrong; leave it out"
        )
    if options.enable_lora and model.foreign is not None:
        raise UnsupportedError(
            f"enable_lora is not there for {model.architecture}, whose layers are transformers'; merge the adapter "
            "into the checkpoint"
        )
    for name in ("enable_prompt_embeds", "enable_prompt_adapter"):
        if getattr(options, name) and (reader := _reader_of_ids(model)):
            raise UnsupportedError(f"{name} is not there for {model.architecture}, whose {reader}; leave it out")
    has_encoder = model.encoder is not None
    of_cache = "keys of its tokens and of an encoder in one cache" if has_encoder else "positions beside its keys"
    words = f"is not there for {model.architecture}, which {model.beside_ops or f'keeps {of_cache}'}; leave it out"
    wishes = {
        "quantization": options.quantization is not None and model.foreign is not None,
        "kv_cache_dtype": any(name in options.kv_cache_dtype for name in model.refused_caches),
        "batch_invariant": options.batch_invariant and bool(model.beside_ops),
    }
    _refuse(options, ConfigError, {name: (wanted, words) for name, wanted in wishes.items()})


def _check_encoder_decoder(options: UserOptions, model: ModelConfig) -> None:
    """Raises UnsupportedError: an option is not there for models with an encoder. ConfigError: a step is too small."""
    missing = {
        "tensor_parallel_size": options.tensor_parallel_size > 1,
        "pipeline_parallel_size": options.pipeline_parallel_size > 1 or options.pipeline_layers is not None,
        "enable_lora": options.enable_lora,
        "enable_prompt_embeds": options.enable_prompt_embeds,
        "enable_prompt_adapter": options.enable_prompt_adapter,
        "speculative_config": options.speculative_config is not None,
        "runner": options.runner == "pooling",
        "convert": options.convert != "auto",
    }
    reason = "whose decoder reads an encoder; leave it out (data_parallel_size runs several engines)"
    words = f"is not there for {model.architecture}, {reason}"
    _refuse(options, UnsupportedError, {name: (wanted, words) for name, wanted in missing.items()})
    assert model.encoder is not None, "the caller's question"
    is_deaf = options.language_model_only or not parse_limits(options.limit_mm_per_prompt).audio
    if is_deaf and model.encoder.reads == "audio":
        raise ConfigError(
            f"{model.architecture} writes down what it hears, which limit_mm_per_prompt or language_model_only turns "
            "off; leave them out"
        )
    most = (options.max_model_len or model.max_position_embeddings) + model.num_encoder_slots(options.block_size)
    if not options.enable_chunked_prefill and options.max_num_batched_tokens < most:
        raise ConfigError(
            f"without chunked prefill max_num_batched_tokens ({options.max_num_batched_tokens}) must be at least "
            f"{most}: the encoder's rows and the prompt are computed in one step; raise it"
        )


def _reader_of_ids(model: ModelConfig) -> str:
    """What needs the ids of tokens, so that no rows can stand in their place; empty: nothing."""
    if model.foreign is not None:
        return "layers are transformers'"
    if model.encoder is not None:
        return "prompts begin with words of its own"
    if model.family.encoder_only is not None:
        return "texts stand between its own special tokens"
    return "" if model.family.layer_inputs is None else "layers each read the token ids"


def _check_encoder_only(options: UserOptions, model: ModelConfig) -> None:
    """Raises ConfigError: an option is for a KV cache or for next tokens."""
    names = (
        "kv_cache_dtype",
        "calculate_kv_scales",
        "num_gpu_blocks_override",
        "speculative_config",
        "batch_invariant",
    )
    defaults = {each.name: each.default for each in options_of(UserOptions)}
    for name in names:
        if (value := getattr(options, name)) != defaults[name]:
            raise ConfigError(
                f"{name}={value!r} is not there for {model.architecture}, an encoder, which has no KV cache and gives "
                "no next tokens; leave it out"
            )
    if options.pipeline_parallel_size > 1:
        raise UnsupportedError(
            f"pipeline_parallel_size={options.pipeline_parallel_size} is not supported for {model.architecture}, an "
            "encoder; use data_parallel_size or tensor_parallel_size"
        )


def _check_sleep_options(options: UserOptions) -> None:
    wishes = {
        "sleep_after": options.sleep_after is not None,
        "auto_wake": bool(options.auto_wake),
        "keep_backup": bool(options.keep_backup),
        "pin_backup": options.pin_backup,
        "sleep_dir": options.sleep_dir is not None,
        "verify_wake": not options.verify_wake,
    }
    if not options.enable_sleep_mode:
        words = "needs enable_sleep_mode=True"
        _refuse(options, ConfigError, {name: (is_set, words) for name, is_set in wishes.items()})
    if not options.idle.wakes_by_request:
        needs = "auto_wake=True or a sleep_after: no request wakes the engine"
        _check_defaults(options, ("wake_timeout", "max_num_wake_waiting"), needs)


def _check_defaults(options: UserOptions, names: tuple[str, ...], needs: str) -> None:
    """Raises ConfigError: one of these options is not at its default, and would have no effect."""
    defaults = {each.name: each.default for each in options_of(UserOptions)}
    for name in names:
        if getattr(options, name) != defaults[name]:
            raise ConfigError(f"{name} needs {needs}")


def _check_launched(options: UserOptions) -> None:
    """Check that a launcher's processes, which plan for themselves, plan alike. Raises ConfigError."""
    if options.distributed_executor_backend != "external_launcher":
        return
    _check_defaults(options, ("worker_timeout", "restart_workers"), "worker processes of the engine's own: 'mp'")
    reasons = {
        "seed": (options.seed is None, "requests without a seed would draw others in each process"),
        "delay_factor": (options.delay_factor > 0, "each process has a clock of its own"),
        "sleep_after": (options.sleep_after is not None, "each process has a clock of its own"),
        "auto_wake": (bool(options.auto_wake), "a request comes to one process, and all have to wake up"),
        "data_parallel_size": (options.data_parallel_size != 1, "more processes than workers are engines of their own"),
    }
    here, else_do = "does not go with distributed_executor_backend='external_launcher'", "leave it out, or take 'mp'"
    wishes = {name: (is_set, f"{here}: {reason}; {else_do}") for name, (is_set, reason) in reasons.items()}
    _refuse(options, ConfigError, wishes)


def refuse_missing_machinery(options: UserOptions) -> None:
    on_gpu = options.place == "cuda"
    if options.attention_backend == "triton" and not on_gpu:
        raise UnsupportedError("attention_backend='triton' needs device='cuda'; on a CPU use auto or torch")
    for_cpu = "use device='cpu' (--device cpu)"
    if options.device == "auto":
        for_cpu = f"device='auto' is the GPU here; {for_cpu}"
    backend = options.distributed_executor_backend
    missing = {
        "keep_backup": (
            bool(options.keep_backup) and not on_gpu,
            "on a CPU a backup takes the memory that is to be free",
        ),
        "pin_backup": (options.pin_backup and not on_gpu, "on a CPU nothing is pinned"),
        "kv_cache_dtype": (
            options.kv_cache_dtype == "int8" and on_gpu,
            f"the GPU's kernels read fp8; take kv_cache_dtype='fp8', or {for_cpu}",
        ),
        "quantization": (
            options.quantization is not None and on_gpu,
            f"there are no GPU kernels for it; leave it out, or {for_cpu}",
        ),
        "distributed_executor_backend": (
            isinstance(backend, str) and backend not in _BACKENDS and not is_importable_name(backend),
            "there are 'uni' (in this process), 'mp' (a process for each worker), 'ray' (on several machines) and "
            "'external_launcher' (in each process that torchrun has started), or a class of your own, like "
            "'package.module:Class'",
        ),
    }
    wishes = {name: (is_set, f"is not supported yet: {advice}") for name, (is_set, advice) in missing.items()}
    _refuse(options, UnsupportedError, wishes)


def _refuse(options: UserOptions, error: type[LullmError], wishes: Mapping[str, tuple[bool, str]]) -> None:
    """Raise `error` for the first wish that is wanted. `wishes`: by option, whether it is, and words for its value."""
    for name, (is_wanted, words) in wishes.items():
        if is_wanted:
            raise error(f"{name}={getattr(options, name)!r} {words}")
