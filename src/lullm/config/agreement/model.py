"""Options that a model has to have something for."""

from lullm.config.agreement.refusal import changed, refuse_first
from lullm.config.model import ModelConfig
from lullm.config.option.pictures import parse_limits
from lullm.config.parallel.share import share_of
from lullm.config.user_option import UserOptions
from lullm.errors import ConfigError, UnsupportedError
from lullm.types.layer_kind import RecurrentState
from lullm.types.parallel.placement import Axis


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
    refuse_first(options, ConfigError, {name: (wanted, words) for name, wanted in wishes.items()})


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
    refuse_first(options, UnsupportedError, {name: (wanted, words) for name, wanted in missing.items()})
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
    if found := changed(options, names):
        raise ConfigError(
            f"{found[0]}={getattr(options, found[0])!r} is not there for {model.architecture}, an encoder, which has "
            "no KV cache and gives no next tokens; leave it out"
        )
    if options.pipeline_parallel_size > 1:
        raise UnsupportedError(
            f"pipeline_parallel_size={options.pipeline_parallel_size} is not supported for {model.architecture}, an "
            "encoder; use data_parallel_size or tensor_parallel_size"
        )
