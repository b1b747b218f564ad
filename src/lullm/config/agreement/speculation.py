"""Options of guesses of the next tokens, and the draft model that makes them."""

from lullm.config.model import ModelConfig
from lullm.config.option.speculation import parse_speculation
from lullm.config.parallel.share import share_of
from lullm.config.user_option import UserOptions
from lullm.errors import ConfigError, UnsupportedError
from lullm.types.layer_kind import FullAttention, Nothing, SharedAttention
from lullm.types.parallel.placement import Axis


def check_speculation(options: UserOptions) -> None:
    """Check `speculative_config` against the other options. Raises ConfigError, UnsupportedError."""
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
            "alone; use tensor_parallel_size, or method ngram or suffix"
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
            "needs them; use method ngram or suffix"
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
