"""vLLM's arguments that lullm lacks, and the treatment of each.

An argument passes with the value that asks for nothing, or always if it could change nothing here. Otherwise it is
refused, with advice.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from lullm.errors import UnsupportedError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class VllmArgument:
    """One argument that lullm lacks.

    Attributes:
        default: vLLM's; it asks for nothing, as None does. As a flag the argument is a switch where the default is True
            or False, and takes several values where it is a tuple.
        advice: what to use instead, or why the argument changes nothing.
        passes: any value is accepted, because none could change anything here.
    """

    default: Any
    advice: str
    passes: bool = False

    def asks_for_nothing(self, value: object) -> bool:
        """Whether the value is vLLM's default, or an empty text, list or dict where that is None."""
        if self.passes or value is None:
            return True
        if self.default is None:
            return isinstance(value, (str, dict, list, tuple)) and not value
        return type(value) is type(self.default) and bool(value == self.default)


def refused(advice: str, **defaults: Any) -> dict[str, VllmArgument]:
    """Arguments that pass with their defaults only."""
    return {name: VllmArgument(default, advice) for name, default in defaults.items()}


def without_effect(reason: str, *names: str, **defaults: Any) -> dict[str, VllmArgument]:
    """Arguments that pass with any value. `defaults`: of those that are no plain values as flags."""
    known = dict.fromkeys(names) | defaults
    return {name: VllmArgument(default, reason, passes=True) for name, default in known.items()}


def without_vllms(arguments: dict[str, Any], known: Mapping[str, VllmArgument]) -> dict[str, Any]:
    """The arguments without those of vLLM that ask for nothing here.

    Raises:
        UnsupportedError: one asks for something; the error says what to use instead.
    """
    for name in arguments.keys() & known.keys():
        if not known[name].asks_for_nothing(arguments[name]):
            raise UnsupportedError(f"{name}={arguments[name]!r} is not supported: {known[name].advice}")
    return {name: value for name, value in arguments.items() if name not in known}


def takes_vllms(known: Mapping[str, VllmArgument]) -> Callable[[F], F]:
    """A decorator: the function takes vLLM's arguments too, by keyword, and raises as `without_vllms` does."""

    def decorated(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **arguments: Any) -> Any:
            return function(*args, **without_vllms(arguments, known) if arguments.keys() & known.keys() else arguments)

        return cast(F, call)

    return decorated


VLLM_CALLS: dict[str, VllmArgument] = {
    **refused(
        "give `truncate_prompt_tokens` in the parameters, `add_special_tokens` in a prompt's dict, or token ids",
        tokenization_kwargs=None,
    ),
    **refused("give it to the engine, to `chat`, or in the dict of a prompt", mm_processor_kwargs=None),
    **refused("give prompts=[{'prompt_token_ids': ids}], or the lists of ids themselves", prompt_token_ids=None),
    **refused("give `structured_outputs` of the parameters", guided_options_request=None),
    **refused("there is no KV connector, whose cache could be reset", reset_connector=False),
    **without_effect("contents are joined to text, which every template takes", "chat_template_content_format"),
    **without_effect("the beams of all prompts run in one batch", "concurrency_limit"),
}
"""Arguments of `LLM`'s calls, named as in vLLM 0.33. A table of docs/from-vllm.md is made from this one."""

VLLM_STREAMS: dict[str, VllmArgument] = {
    "tokenization_kwargs": VLLM_CALLS["tokenization_kwargs"],
    **refused("only `lullm serve` traces, by --otlp-traces-endpoint", trace_headers=None),
    **refused("of several replicas, the one with the least work takes a request", data_parallel_rank=None),
    **refused("a request has its whole prompt, of which prefixes are cached", session_id=None, kv_hints=None),
    **refused("a conversation's template and parser say where thoughts end", reasoning_ended=None),
    **refused("the engine has them: `reasoning_parser`", reasoning_parser_kwargs=None),
    **without_effect("a prompt's dict has its text itself", "prompt_text"),
    **without_effect("a request arrives when it is handed over", "arrival_time"),
}
"""Arguments of requests of `AsyncLLM` and of `LLMEngine.add_request`."""

VLLM_CHATS = {name: each for name, each in VLLM_CALLS.items() if name != "mm_processor_kwargs"}
VLLM_WAIT = without_effect("each output has the type of its request", "output_type")
VLLM_ENQUEUE = without_effect("nothing waits while prompts are taken", "use_tqdm")
VLLM_ABORT = without_effect("an id is that of one request", internal=False)
VLLM_PROFILE = refused("name the folder to write to", profile_prefix=None, profiler_kwargs=None) | refused(
    "call start_profile and stop_profile where the profile is to begin and end", delay_iterations=0, max_iterations=0
)
VLLM_SHUTDOWN = without_effect("it ends once the running requests have, or at once with drain=False", "timeout")
"""Arguments of `LLM.wait_for_completion`, of `enqueue`, of `abort`, of `start_profile` and of `shutdown` besides."""

VLLM_SAMPLING: dict[str, VllmArgument] = {
    **refused("say it by structured_outputs=StructuredOutputsParams(...), with the same fields", guided_decoding=None),
    **refused("use `logit_bias`, `allowed_token_ids` or `bad_words`", logits_processors=None, extra_args=None),
    **refused(
        "`logprobs` gives the most likely tokens, the chosen one besides",
        logprob_token_ids=None,
        prompt_logprob_token_ids=None,
    ),
    **refused("`prompt_logprobs` begin at the prompt's second token", prompt_logprob_start=None),
    **refused(
        "append these tokens to the prompt and ask for `prompt_logprobs`: they come as if drawn",
        trace_decode_token_ids=None,
    ),
    **refused("a model with runner='pooling' gives hidden states: `LLM.encode`", return_last_hidden_states=False),
    **refused(
        "outputs do not say which experts were used; LLM.expert_load() counts them", routed_experts_prompt_start=0
    ),
    **without_effect("the engine knows how much text a stop string may take back", "output_text_buffer_length"),
    **refused("call LLM.beam_search, or give `beam_width`", use_beam_search=False),
    **refused("there are no watermarks", watermarking=None),
    **without_effect("tokens are streamed as they come", "stream_interval"),
    **refused("`repetition_penalty` and `frequency_penalty` work against repetition", repetition_detection=None),
    **without_effect("no blanks are put between special tokens", "spaces_between_special_tokens"),
    **without_effect("log-probabilities are always kept flat, and read like a list of dicts", "flat_logprobs"),
    **without_effect("a request always takes a copy", "skip_clone"),
}
"""Arguments of `SamplingParams`, as above."""

VLLM_POOLING: dict[str, VllmArgument] = {
    **refused(
        "LLM.encode(..., pooling_task='token_embed') gives a row for each token; take the means of the chunks' rows",
        late_chunking_params=None,
    ),
    **refused("LLM.score takes the pairs, and the rows of 'token_embed' are yours", late_interaction_params=None),
    **refused("`step_tag_id` says which rows are kept", returned_token_ids=None, extra_kwargs=None),
    **refused("a `cache_salt` of its own keeps a prompt from others' prefixes", skip_reading_prefix_cache=False),
    **without_effect("a request that pools has one output", "output_kind"),
    **without_effect("a model keeps the ids that it needs", requires_token_ids=False),
}
"""Arguments of `PoolingParams`, as above."""

VLLM_START: dict[str, VllmArgument] = {
    **refused("`stats()` has the engine's numbers, and /metrics of a server shows them", stat_loggers=None),
    **refused("a constructor starts its engine", start_engine_loop=True),
    **without_effect("nothing is told about an engine's use", "usage_context"),
    **without_effect("`AsyncLLMEngine` has a thread, `LLMEngine` is driven by calls", enable_multiprocessing=False),
    **without_effect(
        "`lullm.log` and /metrics are there without it",
        enable_log_requests=False,
        aggregate_engine_logging=False,
        disable_log_stats=False,
    ),
    **refused("`data_parallel_size` has replicas behind one client", client_addresses=None, client_count=1),
    **refused("`data_parallel_size` has replicas behind one client", client_index=0),
}
"""Arguments of `from_engine_args` and `from_vllm_config`."""

_UPDATES = (
    "`update_weights` takes names and tensors, `reload_weights` a folder; a trainer elsewhere uses "
    "`worker_extension_cls` (docs/sleep.md)"
)
_HEALTH = "`check_health()` raises what has happened"
_PARTS = "`config` and `model_config` say what runs, `model_executor` has the workers; weights are not saved"
_CONFIGS = tuple(f"{part}_config" for part in ("cache", "scheduler", "parallel", "lora", "load", "device", "decoding"))
_OPTIONS = "`config` of the engine has all options (`llm.llm_engine.config.block_size`), `stats()` its numbers"
_RENDERED = (
    "`generate` takes the prompt, `chat` the messages; `llm_engine.input_processor.tokenize(prompt)` gives the ids"
)
_POOLS = "`llm_engine.model_config.pooler` is None, or says what the model pools"

VLLM_NAMES: dict[str, str] = {
    **dict.fromkeys(("init_weight_transfer_engine", "start_weight_update", "finish_weight_update"), _UPDATES),
    **dict.fromkeys(("shutdown_weight_transfer_engine", "start_draft_weight_update"), _UPDATES),
    **dict.fromkeys(
        ("get_weight_version", "set_weight_version", "update_weight_version"),
        "`collective_rpc('weights_version')` counts the updates",
    ),
    **dict.fromkeys(
        ("reset_mm_cache", "reset_encoder_cache"), "`reset_prefix_cache()` forgets the rows of pictures, too"
    ),
    **dict.fromkeys(("errored", "is_running", "is_stopped", "dead_error"), _HEALTH),
    **dict.fromkeys(("engine_core", "vllm_config", "get_model_config", "get_vllm_config"), _PARTS),
    "renderer": _RENDERED,
    **dict.fromkeys(("get_num_queued_tokens", "get_status", "do_log_stats"), "`stats()` has the engine's numbers"),
    "get_metrics": "`stats()` has the engine's numbers, `LLM.get_metrics` those of vLLM's names",
    "is_paused": "`is_sleeping()` is true then, too, and `sleep_state` says which",
    "release_kv_cache_memory": "it is `sleep(tags=['kv_cache'])`",
    "add_request": "`generate` streams the outputs of a request",
    "get_tokenizer_group": "it is `tokenizer`",
    "tokenizer": "it is `get_tokenizer()`",
    "model_config": "`llm_engine.config` has `max_model_len` and all options, `llm_engine.model_config` the folder's",
    "default_sampling_params": "it is `get_default_sampling_params()`",
    "request_counter": "`enqueue` returns the ids of its requests",
    "save_sharded_state": _PARTS,
    **dict.fromkeys(_CONFIGS, _OPTIONS),
    **dict.fromkeys((f"get_{name}" for name in _CONFIGS), _OPTIONS),
    **dict.fromkeys(("preprocess_chat", "preprocess_cmpl", "render_chat", "render_cmpl", "io_processor"), _RENDERED),
    **dict.fromkeys(("input_preprocessor", "processor"), _RENDERED),
    **dict.fromkeys(("output_processor", "scheduler", "log_stats"), "`stats()` and `memory_snapshot()` show its state"),
    "apply_model": "it is a function of the model: `collective_rpc(lambda worker: f(worker.loaded.model))`",
    "set_tokenizer": "give `tokenizer` at the start",
    **dict.fromkeys(("get_supported_tasks", "supported_tasks", "runner_type", "pooler_config"), _POOLS),
    "check_admission": "a request is admitted or refused when it comes; `stats()` says how many run and wait",
    **dict.fromkeys(("is_tracing_enabled", "notify_kv_transfer_request_rejected"), "there is nothing like it here"),
    **dict.fromkeys(("checkpoint_prepare", "checkpoint_restore"), "`hibernate(folder)` of `LLM` and `resume` do that"),
    **dict.fromkeys(("scale_elastic_ep", "get_external_elastic_ep_status"), "the number of workers and replicas stays"),
    **dict.fromkeys(("handle_fault", "should_keep_api_server_alive"), _HEALTH + "; `restart_workers` replaces workers"),
    "get_kv_event_sources": "prefixes are not passed between engines",
    "has_unfinished_requests_dp": "`has_unfinished_requests()` knows the requests of all replicas",
    "do_log_stats_with_interval": "`stats()` has the engine's numbers",
    "wait_for_requests_to_drain": "`sleep(0, mode='wait')` returns once they have ended",
}
"""vLLM's methods and attributes of `LLM`, `LLMEngine` and `AsyncLLM` that lullm lacks -> what to use here."""


VLLM_MODEL_NAMES: dict[str, str] = {
    "max_model_len": "it is `config.max_model_len` of the engine; `max_position_embeddings` is what the folder says",
    **dict.fromkeys(("hf_config", "hf_text_config"), "the fields of config.json that lullm reads stand here, flat"),
    **dict.fromkeys(
        ("model", "tokenizer", "served_model_name", "seed", "max_logprobs"), "`config` of the engine has it"
    ),
    **{f"get_{name}": f"it is `{name}`" for name in ("vocab_size", "hidden_size")},
    "get_head_size": "it is `head_dim`",
    "is_encoder_decoder": "`encoder` is None, or says what it reads",
    **dict.fromkeys(("runner_type", "pooler_config", "task"), "`pooler` is None, or says what the model pools"),
    "is_multimodal_model": "`vision` and `hearing` are None, or say how it sees and hears",
}
"""The same of its `ModelConfig`."""


class VllmNames:
    """A class with methods under vLLM's names. Those that it lacks raise AttributeError with the name to use here."""

    __slots__ = ()
    _vllm_names: ClassVar[Mapping[str, str]] = VLLM_NAMES

    if not TYPE_CHECKING:  # otherwise a type checker accepts every name

        def __getattr__(self, name: str) -> Any:
            advice = f": {self._vllm_names[name]}" if name in self._vllm_names else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{advice}", name=name, obj=self
            )
