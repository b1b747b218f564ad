"""Options that do not go together, or do not exist yet."""

from lullm.config.agreement.refusal import check_defaults, refuse_first
from lullm.config.agreement.speculation import check_speculation
from lullm.config.generation import parse_override
from lullm.config.json_file import option_object
from lullm.config.option.pictures import check_hosts, parse_limits
from lullm.config.parallel.cut import check_stages
from lullm.config.user_option import UserOptions
from lullm.errors import ConfigError, UnsupportedError
from lullm.types.request import TEMPLATE_FIELDS, THINKING_VARIABLES
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
    _check_template_kwargs(options)
    parse_limits(options.limit_mm_per_prompt)
    check_hosts(options.allowed_media_domains)
    check_speculation(options)
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
        check_defaults(options, alone, "worker processes: distributed_executor_backend='mp'")
    if options.executor_backend == "ray":
        check_defaults(options, ("restart_workers",), "processes of this machine: distributed_executor_backend='mp'")
    if options.enable_expert_parallel and options.tensor_parallel_size == 1:
        raise ConfigError("enable_expert_parallel deals the experts to workers: set tensor_parallel_size, too")


def _check_adapters(options: UserOptions) -> None:
    if not options.enable_lora:
        check_defaults(options, ("max_loras", "max_lora_rank", "max_cpu_loras"), "enable_lora=True")
    if not options.enable_prompt_adapter:
        check_defaults(options, ("max_prompt_adapters", "max_prompt_adapter_token"), "enable_prompt_adapter=True")
    if options.num_kept_loras < options.max_loras:
        raise ConfigError(
            f"max_cpu_loras ({options.max_cpu_loras}) must be at least max_loras ({options.max_loras}): adapters in "
            "use are kept in host memory, too"
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
        refuse_first(options, ConfigError, {name: (is_set, words) for name, is_set in wishes.items()})
    if not options.idle.wakes_by_request:
        needs = "auto_wake=True or a sleep_after: no request wakes the engine"
        check_defaults(options, ("wake_timeout", "max_num_wake_waiting"), needs)


def _check_launched(options: UserOptions) -> None:
    """Check that a launcher's processes, which plan for themselves, plan alike. Raises ConfigError."""
    if options.distributed_executor_backend != "external_launcher":
        return
    check_defaults(options, ("worker_timeout", "restart_workers"), "worker processes of the engine's own: 'mp'")
    reasons = {
        "seed": (options.seed is None, "requests without a seed would draw others in each process"),
        "delay_factor": (options.delay_factor > 0, "each process has a clock of its own"),
        "sleep_after": (options.sleep_after is not None, "each process has a clock of its own"),
        "auto_wake": (bool(options.auto_wake), "a request comes to one process, and all have to wake up"),
        "data_parallel_size": (options.data_parallel_size != 1, "more processes than workers are engines of their own"),
    }
    here, else_do = "does not go with distributed_executor_backend='external_launcher'", "leave it out, or take 'mp'"
    wishes = {name: (is_set, f"{here}: {reason}; {else_do}") for name, (is_set, reason) in reasons.items()}
    refuse_first(options, ConfigError, wishes)


def refuse_missing_machinery(options: UserOptions) -> None:
    """Raises UnsupportedError: an option needs what this kind of device has not got."""
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
    refuse_first(options, UnsupportedError, wishes)


def _check_template_kwargs(options: UserOptions) -> None:
    given = option_object("default_chat_template_kwargs", options.default_chat_template_kwargs)
    if own := sorted(given.keys() & TEMPLATE_FIELDS):
        raise ConfigError(f"default_chat_template_kwargs: {own[0]} is a request's own")
    if options.think is not None and given.keys() & THINKING_VARIABLES:
        raise ConfigError("think and default_chat_template_kwargs both say whether the model thinks; give one of them")
