"""LLM: offline generation over lists of prompts, under the names people know from vLLM."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from lullm.config.engine import EngineArguments, EngineConfig
from lullm.engine.factory import start_engine
from lullm.errors import EngineAsleepError, InvalidRequestError
from lullm.llm.beam_search import BeamSearchOutput, BeamSearchParams, beam_search_output, checked_width
from lullm.llm.hibernation import HibernationCalls
from lullm.llm.offline import run_all
from lullm.llm.pooling import PoolingCalls
from lullm.llm.prompt import (
    Loras,
    PromptAdapters,
    UseTqdm,
    as_prompts,
    conversations,
    lora_each,
    one_each,
    prompt_adapter_each,
    turn_options,
)
from lullm.llm.tally import Tally
from lullm.metrics.reader import Metric
from lullm.types.outputs import RequestOutput
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import CallerRequest, Conversation, GenerateRequest, Input, Prompt
from lullm.types.sampling_params import OutputKind, SamplingParams
from lullm.types.vllm_argument import VLLM_CALLS, VLLM_CHATS, VLLM_ENQUEUE, VLLM_WAIT, takes_vllms

if TYPE_CHECKING:
    from lullm.text.chat_template import Message


class LLM(PoolingCalls, HibernationCalls):
    """A model, ready to generate. `LLM()` is the bundled demo model.

    Calls from several threads take turns. Ctrl-C takes effect at the end of a step and leaves the object usable. Blocks
    until the model is loaded.

    Args:
        model: local folder, hub id, or 'demo'.
        options: the fields of `EngineConfig`. docs/from-vllm.md explains vLLM's other options.

    Raises:
        ModelLoadError, ConfigError, CacheSizeError: see `LLMEngine`.
    """

    def __init__(self, model: str = "demo", **options: Any):
        config = EngineConfig.from_options({"model": model, **options})
        super().__init__(start_engine(config))
        self._open_hibernation()
        self._num_workers, self._num_replicas = config.num_workers, config.data_parallel_size
        self._tally = Tally(self.llm_engine)
        self._request_ids = itertools.count()
        self._enqueued: list[GenerateRequest] = []

    @classmethod
    def from_engine_args(cls, engine_args: EngineArguments) -> "LLM":
        """Construct from `EngineArgs`. Raises as the constructor does."""
        return cls(**dataclasses.asdict(engine_args.create_engine_config()))

    @takes_vllms(VLLM_CALLS)
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        priority: int | Sequence[int] | None = None,
        lora_request: Loras = None,
        prompt_adapter_request: PromptAdapters = None,
    ) -> list[RequestOutput]:
        """Complete the prompts; the outputs are in their order. Blocks until all are done.

        Args:
            prompts: one prompt or several: a list, a generator, a column of a data set. A prompt is a string, a list of
                token ids, or a dict with `prompt` or `prompt_token_ids`, and `multi_modal_data` for pictures; or with
                `prompt_embeds`, rows in place of tokens.
            sampling_params: one for all, or one for each prompt; None: the model's defaults.
            use_tqdm: show progress; or a function that makes the bar, with the arguments of `tqdm`.
            priority: one number for all prompts, or one for each; lower goes first (policy 'priority').
            lora_request: one adapter for all prompts, or one or None for each; see docs/lora.md.
            prompt_adapter_request: likewise, whose rows stand before the prompt; see docs/prompt-embeddings.md.

        Raises:
            InvalidRequestError: a request can never be served; then none of them is started.
            EngineDeadError: the engine failed.
        """
        given = sampling_params, priority, lora_request, prompt_adapter_request
        return self._run(self._requests(as_prompts(prompts), *given), use_tqdm)

    @takes_vllms(VLLM_CALLS | VLLM_ENQUEUE)
    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        priority: int | Sequence[int] | None = None,
        lora_request: Loras = None,
        prompt_adapter_request: PromptAdapters = None,
    ) -> list[str]:
        """Queue prompts for the next `wait_for_completion`; returns their request ids. Raises as `generate` does."""
        given = sampling_params, priority, lora_request, prompt_adapter_request
        return self._enqueue(self._requests(as_prompts(prompts), *given))

    def _enqueue(self, requests: list[GenerateRequest]) -> list[str]:
        with self._turn:
            self._enqueued += requests
        return [request.request_id for request in requests]

    @takes_vllms(VLLM_WAIT)
    def wait_for_completion(self, *, use_tqdm: UseTqdm = True) -> list[RequestOutput]:
        """Run the requests that `enqueue` queued; the outputs are in their order. Blocks until all are done.

        Requests that `resume` has brought back are run, too, and their outputs come first.

        Raises as `generate` does. EngineAsleepError: they stay queued.
        """
        with self._turn:
            requests, self._enqueued = self._enqueued, []
            try:
                outputs = self._run(requests, use_tqdm, waits_for_resumed=True)
                return self._take_resumed() + outputs
            except EngineAsleepError:  # nothing of them has begun
                self._enqueued = requests
                raise

    def _requests(
        self,
        prompts: Sequence[Prompt | Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int] | None = None,
        loras: Loras = None,
        prompt_adapters: PromptAdapters = None,
    ) -> list[GenerateRequest]:
        given = self.get_default_sampling_params() if sampling_params is None else sampling_params
        params = one_each("sampling_params", given, SamplingParams, len(prompts))
        final = [one.replace(output_kind=OutputKind.FINAL_ONLY) for one in params]
        ranks = one_each("priority", 0 if priority is None else priority, int, len(prompts))
        return self._processed(prompts, final, ranks, loras, prompt_adapters)

    def _processed(
        self,
        prompts: Sequence[Input],
        params: Sequence[Any],
        priorities: Sequence[int],
        loras: Loras,
        prompt_adapters: PromptAdapters = None,
    ) -> list[GenerateRequest]:
        process, num = self.llm_engine.input_processor.process, len(prompts)
        adapters = lora_each(loras, num), prompt_adapter_each(prompt_adapters, num)
        return [
            process(CallerRequest(str(next(self._request_ids)), *each))
            for each in zip(prompts, params, priorities, *adapters, strict=True)
        ]

    def _run(
        self, requests: Sequence[GenerateRequest], use_tqdm: UseTqdm, waits_for_resumed: bool = False
    ) -> list[Any]:
        """The last output of each request, in their order."""
        with self._exclusive() as interrupt, self._running_requests():
            outputs = run_all(
                self.llm_engine,
                requests,
                use_tqdm,
                interrupt,
                self._resumed,
                waits_for_resumed,
                self._hibernate_between_steps,
            )
            self._tally.add(requests, outputs)
            return outputs

    def _pool_all(
        self, prompts: Sequence[Input], params: Sequence[PoolingParams], use_tqdm: UseTqdm, loras: Loras
    ) -> list[Any]:
        return self._run(self._processed(prompts, params, [0] * len(prompts), loras), use_tqdm)

    @takes_vllms(VLLM_CHATS)
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
        priority: int | Sequence[int] | None = None,
        lora_request: Loras = None,
        prompt_adapter_request: PromptAdapters = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list of them, through the model's chat template.

        Args:
            tools: functions that the model may call, in OpenAI's form. The output's text has the calls as the model
                writes them.
            chat_template: text of a template to use in place of the model's.
            chat_template_kwargs: variables of the template, such as `enable_thinking`.
            continue_final_message: the answer continues the last message. Otherwise the template opens a turn of the
                assistant, unless `add_generation_prompt` is False.
            split_special_tokens: see `Conversation`; by default no text of the messages acts as a special token.
            lora_request, prompt_adapter_request: as for `generate`.
            mm_processor_kwargs: as in the dict of a prompt (`TextPrompt`).

        Raises as `generate` does; also InvalidRequestError when the model has no chat template.
        """
        turn = turn_options(add_generation_prompt, continue_final_message)
        prompts = conversations(
            messages, chat_template_kwargs, tools, turn, split_special_tokens, chat_template, mm_processor_kwargs
        )
        given = sampling_params, priority, lora_request, prompt_adapter_request
        return self._run(self._requests(prompts, *given), use_tqdm)

    @takes_vllms(VLLM_CHATS | VLLM_ENQUEUE)
    def enqueue_chat(
        self,
        messages: "Sequence[Message] | Sequence[Sequence[Message]]",
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: Loras = None,
        prompt_adapter_request: PromptAdapters = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> list[str]:
        """Queue conversations, as for `chat`, for the next `wait_for_completion`; returns their request ids."""
        turn = turn_options(add_generation_prompt, continue_final_message)
        prompts = conversations(messages, chat_template_kwargs, tools, turn, None, chat_template, mm_processor_kwargs)
        given = sampling_params, priority, lora_request, prompt_adapter_request
        return self._enqueue(self._requests(prompts, *given))

    @overload
    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: UseTqdm = False,
        lora_request: Loras = None,
        prompt_adapter_request: PromptAdapters = None,
        priority: int | Sequence[int] | None = None,
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
        lora_request: Loras = None,
        prompt_adapter_request: PromptAdapters = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]: ...
    @takes_vllms(VLLM_CALLS)
    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams | int | None = None,
        max_tokens: int = 16,
        *,
        beam_width: int | None = None,
        n: int | None = None,
        use_tqdm: UseTqdm = False,
        lora_request: Loras = None,
        prompt_adapter_request: PromptAdapters = None,
        priority: int | Sequence[int] | None = None,
        **options: Any,
    ) -> list[RequestOutput] | list[BeamSearchOutput]:
        """The best of `beam_width` hypotheses for each prompt, best first; see `SamplingParams`.

        Args:
            params: vLLM's `BeamSearchParams`; the outputs are then vLLM's, too. Or the beam width.
            n: number of hypotheses to return; None: all.
            options: length_penalty, early_stopping, ignore_eos.

        The beams of a prompt share the KV blocks of their common prefix. Raises as `generate` does.
        """
        given = priority, lora_request, prompt_adapter_request
        if isinstance(params, BeamSearchParams):
            if options or (max_tokens, beam_width, n) != (16, None, None):
                raise InvalidRequestError("BeamSearchParams say all of it; give nothing besides", "params")
            outputs = self.generate(prompts, params.sampling_params, use_tqdm, *given)
            return [beam_search_output(output, self.get_tokenizer().decode) for output in outputs]
        width = checked_width(beam_width if params is None else params)
        wanted = SamplingParams(n=width if n is None else n, beam_width=width, max_tokens=max_tokens, **options)
        return self.generate(prompts, wanted, use_tqdm, *given)

    def get_world_size(self, include_dp: bool = True) -> int:
        """The number of workers: of all replicas (`include_dp`), or of one."""
        return self._num_workers * (self._num_replicas if include_dp else 1)

    def get_metrics(self) -> list[Metric]:
        """The metrics of /metrics under vLLM's names: gauges and counters of the engine, histograms of the requests.

        Histograms count the requests of this object's calls, not those of `llm_engine.add_request`.
        """
        with self._exclusive():
            return self._tally.read()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
