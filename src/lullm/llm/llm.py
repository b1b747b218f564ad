"""LLM: offline generation over lists of prompts, under the names people know from vLLM."""

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from lullm.config.engine import EngineArguments, EngineConfig
from lullm.engine.interrupt import deferred_interrupt
from lullm.engine.offline import run_all
from lullm.engine.start.client import start_engine
from lullm.errors import InvalidRequestError, UnsupportedError
from lullm.llm.beam_search import BeamSearchOutput, BeamSearchParams, beam_search_output
from lullm.llm.pooling import PoolingCalls
from lullm.llm.prompt import UseTqdm, as_prompts, one_each
from lullm.llm.tally import Tally
from lullm.metrics.reader import Metric
from lullm.types.outputs import RequestOutput
from lullm.types.parallel.experts import ExpertLoad, ExpertMove
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import Conversation, GenerateRequest, Input, Prompt
from lullm.types.sampling_params import OutputKind, SamplingParams
from lullm.types.sleep import ForecastArguments, SleepArguments, SleepForecast, SleepReport, SleepState, WakeReport

if TYPE_CHECKING:
    import torch

    from lullm.text.chat_template import Message
    from lullm.text.tokenizer import Tokenizer


T = TypeVar("T")


class LLM(PoolingCalls):
    """A model, ready to generate. `LLM()` is the bundled demo model.

    Calls from several threads take turns. Ctrl-C takes effect at the end of a step and leaves the object usable.

    Args:
        model: local folder, hub id, or 'demo'. options: the fields of `EngineConfig`; vLLM's others mean what
            docs/from-vllm.md says.

    Raises:
        ModelLoadError, ConfigError, CacheSizeError: see `LLMEngine`. Blocks until the model is loaded.
    """

    def __init__(self, model: str = "demo", **options: Any):
        self.llm_engine = start_engine(EngineConfig.from_options({"model": model, **options}))
        self._tally = Tally(self.llm_engine)
        self._request_ids = itertools.count()
        self._turn = threading.RLock()
        self._enqueued: list[GenerateRequest] = []

    @classmethod
    def from_engine_args(cls, engine_args: EngineArguments) -> "LLM":
        """With the options of an `EngineArgs`. Raises as the constructor does."""
        return cls(**dataclasses.asdict(engine_args.create_engine_config()))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete the prompts; the outputs are in their order. Blocks until all are done.

        Args:
            prompts: one prompt or several; a prompt is a string, a list of token ids, or a dict with `prompt` or
                `prompt_token_ids`. sampling_params: one for all, or one each; None: the model's defaults.
            use_tqdm: show progress; or what makes the bar, as `tqdm` does.
            priority: one number for all prompts, or one each; lower goes first (policy 'priority').

        Raises:
            InvalidRequestError: a request can never be served; then none of them is started.
            EngineDeadError: the engine failed.
        """
        if lora_request is not None:
            raise UnsupportedError("lora_request: LoRA adapters are not supported yet")
        return self._run(self._requests(as_prompts(prompts), sampling_params, priority), use_tqdm)

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[str]:
        """Take prompts for the next `wait_for_completion`; their request ids. Raises as `generate` does."""
        requests = self._requests(as_prompts(prompts), sampling_params, priority)
        with self._turn:
            self._enqueued += requests
        return [request.request_id for request in requests]

    def wait_for_completion(self, *, use_tqdm: UseTqdm = True) -> list[RequestOutput]:
        """Run what `enqueue` took; the outputs are in its order. Blocks until all are done."""
        with self._turn:
            requests, self._enqueued = self._enqueued, []
            return self._run(requests, use_tqdm)

    def _requests(
        self,
        prompts: Sequence[Prompt | Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int] | None = None,
    ) -> list[GenerateRequest]:
        given = self.get_default_sampling_params() if sampling_params is None else sampling_params
        params = one_each("sampling_params", given, SamplingParams, len(prompts))
        final = [one.replace(output_kind=OutputKind.FINAL_ONLY) for one in params]
        return self._processed(
            prompts, final, one_each("priority", 0 if priority is None else priority, int, len(prompts))
        )

    def _processed(
        self, prompts: Sequence[Input], params: Sequence[Any], priorities: Sequence[int]
    ) -> list[GenerateRequest]:
        process = self.llm_engine.input_processor.process
        return [
            process(str(next(self._request_ids)), prompt, one, rank)
            for prompt, one, rank in zip(prompts, params, priorities, strict=True)
        ]

    def _run(self, requests: Sequence[GenerateRequest], use_tqdm: UseTqdm) -> list[Any]:
        """The last output of each request, in their order."""
        with self._exclusive() as interrupt:
            outputs = run_all(self.llm_engine, requests, use_tqdm, interrupt)
            self._tally.add(requests, outputs)
            return outputs

    def _pool_all(self, prompts: Sequence[Input], params: Sequence[PoolingParams], use_tqdm: UseTqdm) -> list[Any]:
        return self._run(self._processed(prompts, params, [0] * len(prompts)), use_tqdm)

    def chat(
        self,
        messages: "Sequence[Message] | Sequence[Sequence[Message]]",
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        chat_template_kwargs: dict[str, Any] | None = None,
        split_special_tokens: bool | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of a list of them, through the model's chat template.

        `tools`: functions that the model may call, in OpenAI's form; the output's text has the calls as the model
        writes them. `chat_template`: another one than the model's, as a text; `chat_template_kwargs`: variables of its
        own, such as `enable_thinking`. `continue_final_message`: the answer goes on with the last message, which stays
        open; else the template opens a turn of the assistant's, unless `add_generation_prompt` is False.
        `split_special_tokens` as in `Conversation`: by default nothing that the messages say acts as a special token.
        Raises as `generate` does; also InvalidRequestError when the model has no chat template.
        """
        if not isinstance(messages, (list, tuple)):
            raise InvalidRequestError(f"messages must be a list of messages, not {type(messages).__name__}", "messages")
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "add_generation_prompt opens a new turn, and continue_final_message none; take one of them",
                "continue_final_message",
            )
        options = (chat_template_kwargs or {}) | ({"tools": list(tools)} if tools else {})
        options |= {"continue_final_message": True} if continue_final_message else {}
        options |= {} if add_generation_prompt is None else {"add_generation_prompt": add_generation_prompt}
        split = split_special_tokens
        prompts = [Conversation(each, options, split, template=chat_template) for each in conversations]
        return self._run(self._requests(prompts, sampling_params), use_tqdm)

    @overload
    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, *, use_tqdm: UseTqdm = False
    ) -> list[BeamSearchOutput]: ...
    @overload
    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: int | None = None,
        max_tokens: int = 16,
        *,
        beam_width: int | None = None,
        n: int | None = None,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        ignore_eos: bool = False,
        use_tqdm: UseTqdm = False,
    ) -> list[RequestOutput]: ...
    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams | int | None = None,
        max_tokens: int = 16,
        *,
        beam_width: int | None = None,
        n: int | None = None,
        use_tqdm: UseTqdm = False,
        **options: Any,
    ) -> list[RequestOutput] | list[BeamSearchOutput]:
        """The best of `beam_width` hypotheses for each prompt, best first; see `SamplingParams`.

        Args:
            params: vLLM's `BeamSearchParams`; then the outputs are vLLM's, too. Or the beam width.
            n: how many of the hypotheses to return; None: all.
            options: length_penalty, early_stopping, ignore_eos.

        The beams of a prompt share the KV blocks of their common prefix. Raises as `generate` does.
        """
        if isinstance(params, BeamSearchParams):
            outputs = self.generate(prompts, params.sampling_params, use_tqdm)
            return [beam_search_output(output, self.get_tokenizer().decode) for output in outputs]
        width = beam_width if params is None else params
        if width is None:
            raise InvalidRequestError("beam_search needs a beam_width or BeamSearchParams", "beam_width")
        if isinstance(width, int) and width < 1:
            raise InvalidRequestError(f"beam_width must be at least 1, got {width}", "beam_width")
        wanted = SamplingParams(n=width if n is None else n, beam_width=width, max_tokens=max_tokens, **options)
        return self.generate(prompts, wanted, use_tqdm)

    def get_tokenizer(self) -> "Tokenizer":
        """The model's tokenizer, with its chat template."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What a request without parameters uses: the model's generation_config.json. A copy, to be changed freely."""
        return self.llm_engine.default_params.clone()

    def get_metrics(self) -> list[Metric]:
        """The numbers of /metrics under vLLM's names: gauges and counters of the engine, histograms of the requests.

        Histograms count requests of this object's calls, not those of `llm_engine.add_request`.
        """
        with self._exclusive():
            return self._tally.read()

    def sleep(self, level: int = 1, **options: Unpack[SleepArguments]) -> SleepReport:
        """Release memory until `wake_up`; needs `enable_sleep_mode=True`. Blocks until the memory is released.

        Args:
            level: 0 pauses, 1 keeps what is needed to go on, 2 keeps nothing.
            options: mode ('keep', 'wait', 'abort'), tags ('weights', 'kv_cache'), backup ('auto', 'ram', 'disk'),
                keep_prefix_cache; `SleepOptions` says what each means.

        Raises as `LLMEngine.sleep` does.
        """
        with self._exclusive():
            return self.llm_engine.sleep(level, **options)

    def explain_sleep(self, level: int = 1, **options: Unpack[ForecastArguments]) -> SleepForecast:
        """What a `sleep` with these arguments would free, back up and take. Changes nothing; raises as `sleep` does."""
        with self._exclusive():
            return self.llm_engine.explain_sleep(level, **options)

    def wake_up(self, tags: Sequence[str] | None = None) -> WakeReport:
        """Bring back what `sleep` released (`tags` None: all), at the same addresses. Idempotent.

        Raises:
            WakeUpError: the contents did not come back as they were; the engine is still asleep.
        """
        with self._exclusive():
            return self.llm_engine.wake_up(tags)

    def is_sleeping(self) -> bool:
        """Whether something is released, or the engine paused (level 0)."""
        return self.llm_engine.is_sleeping()

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """What is released now: 'weights', 'kv_cache', both or nothing."""
        return self.llm_engine.sleeping_tags

    @property
    def sleep_state(self) -> SleepState:
        """Awake or how deep asleep, in one word."""
        return self.llm_engine.sleep_state

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. Always True."""
        with self._exclusive():
            return self.llm_engine.reset_prefix_cache()

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call `method` on every worker: 'reload_weights', another of `REMOTE_METHODS`, a method that
        `worker_extension_cls` brings along, or a function of the worker.

        Returns one answer per worker. Raises as `LLMEngine.collective_rpc` does.
        """
        with self._exclusive():
            return self.llm_engine.collective_rpc(method, timeout, args, kwargs)

    def apply_model(self, func: "Callable[[torch.nn.Module], T]") -> list[T]:
        """What `func` makes of the model on every worker. Raises what it raises.

        Workers in other processes import `func` by its name. Raises UnsupportedError: it has none.
        """
        from lullm.worker.extension import call_with_model  # torch is loaded with the engine

        return self.collective_rpc(call_with_model, args=(func,))

    def start_profile(self, folder: str | Path = "profile") -> None:
        """Record where the time goes, until `stop_profile`, with torch. Raises as `Profiler.start` does."""
        with self._exclusive():
            self.llm_engine.profiler.start(folder)

    def stop_profile(self) -> Path:
        """End the recording; the trace in the folder, for chrome://tracing. Raises as `Profiler.stop` does."""
        with self._exclusive():
            return self.llm_engine.profiler.stop()

    def update_weights(self, weights: "Iterable[tuple[str, torch.Tensor]]") -> int:
        """Replace weights by a trainer's, under the checkpoint's names; how many. Raises as the engine's does."""
        with self._exclusive():
            return self.llm_engine.update_weights(weights)

    def expert_load(self, clear: bool = False) -> ExpertLoad:
        """How many tokens have used each expert. `clear`: it is counted anew from now on."""
        with self._exclusive():
            return self.llm_engine.expert_load(clear)

    def rebalance_experts(self) -> ExpertMove:
        """Move experts, so that all workers have as much to do. Raises as `LLMEngine.rebalance_experts` does."""
        with self._exclusive():
            return self.llm_engine.rebalance_experts()

    def shutdown(self) -> None:
        """Give all memory back; the object cannot be used afterwards. Idempotent."""
        with self._exclusive():
            self.llm_engine.shutdown()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[threading.Event]:
        """The engine for this thread alone. Ctrl-C meanwhile sets the event and breaks nothing off."""
        with self._turn, deferred_interrupt() as interrupt:
            yield interrupt
