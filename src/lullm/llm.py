"""LLM: offline generation over lists of prompts, under the names people know from vLLM."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from lullm.config.engine import EngineConfig
from lullm.config.pooling.pooler import reads_pairs
from lullm.engine.head_start import head_start
from lullm.engine.interrupt import deferred_interrupt
from lullm.engine.offline import run_all
from lullm.errors import InvalidRequestError, LullmError, UnsupportedError
from lullm.types.outputs import RequestOutput
from lullm.types.pooling.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from lullm.types.pooling.params import PoolingParams, PoolingTask
from lullm.types.pooling.score import Scoring
from lullm.types.request import Conversation, Input, Prompt
from lullm.types.sampling_params import OutputKind, SamplingParams, integers
from lullm.types.sleep import ForecastArguments, SleepArguments, SleepForecast, SleepReport, SleepState, WakeReport

if TYPE_CHECKING:
    import torch

    from lullm.text.chat_template import Message
    from lullm.text.tokenizer import Tokenizer


class LLM:
    """A model, ready to generate. `LLM()` is the bundled demo model.

    Calls from several threads take turns. Ctrl-C takes effect at the end of a step and leaves the object usable.

    Args:
        model: local folder, hub id, or 'demo'. options: the fields of `EngineConfig`.

    Raises:
        ModelLoadError, ConfigError, CacheSizeError: see `LLMEngine`. Blocks until the model is loaded.
    """

    def __init__(self, model: str = "demo", **options: Any):
        config = EngineConfig.from_options({"model": model, **options})
        with head_start(config) as ahead:
            from lullm.engine.llm_engine import LLMEngine  # torch is loaded here, beside the head start

            self.llm_engine = LLMEngine(config, ahead=ahead)
        self._request_ids = itertools.count()
        self._turn = threading.RLock()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete the prompts; the outputs are in their order. Blocks until all are done.

        Args:
            prompts: one prompt or several; a prompt is a string, a list of token ids, or a dict with `prompt` or
                `prompt_token_ids`. sampling_params: one for all, or one each; None: the model's defaults.
            use_tqdm: show progress. priority: one number per prompt, lower goes first (policy 'priority').

        Raises:
            InvalidRequestError: a request can never be served; then none of them is started.
            EngineDeadError: the engine failed.
        """
        if lora_request is not None:
            raise UnsupportedError("lora_request: LoRA adapters are not supported yet")
        return self._generate(_as_prompts(prompts), sampling_params, use_tqdm, priority)

    def _generate(
        self,
        prompts: Sequence[Prompt | Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        params = self._one_each("sampling_params", sampling_params, SamplingParams, prompts)
        priorities = [0] * len(prompts) if priority is None else list(priority)
        if len(priorities) != len(prompts):
            raise InvalidRequestError(f"{len(priorities)} priorities for {len(prompts)} prompts", "priority")
        final = [one.replace(output_kind=OutputKind.FINAL_ONLY) for one in params]
        return self._process_and_run(prompts, final, use_tqdm, priorities)

    def _process_and_run(
        self,
        prompts: Sequence[Input],
        params: Sequence[SamplingParams | PoolingParams],
        use_tqdm: bool,
        priorities: Sequence[int] = (),
    ) -> list[Any]:
        """The last output of each request, in the order of the prompts."""
        process = self.llm_engine.input_processor.process
        requests = [
            process(str(next(self._request_ids)), prompt, one, rank)
            for prompt, one, rank in zip(prompts, params, priorities or [0] * len(prompts), strict=True)
        ]
        with self._exclusive() as interrupt:
            return run_all(self.llm_engine, requests, use_tqdm, interrupt)

    def chat(
        self,
        messages: "Sequence[Message] | Sequence[Sequence[Message]]",
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
        split_special_tokens: bool | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of a list of them, through the model's chat template.

        `tools`: functions that the model may call, in OpenAI's form; the output's text has the calls as the model
        writes them. `chat_template_kwargs`: variables of the template's own, such as `enable_thinking`.
        `split_special_tokens` as in `Conversation`: by default nothing that the messages say acts as a special token.
        Raises as `generate` does; also InvalidRequestError when the model has no chat template.
        """
        if not isinstance(messages, (list, tuple)):
            raise InvalidRequestError(f"messages must be a list of messages, not {type(messages).__name__}", "messages")
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        options = (chat_template_kwargs or {}) | ({"tools": list(tools)} if tools else {})
        prompts = [Conversation(messages, options, split_special_tokens) for messages in conversations]
        return self._generate(prompts, sampling_params, use_tqdm)

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
        pooling_task: PoolingTask | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Pool each prompt as the model does; the outputs are in their order. Blocks until all are done.

        Args:
            prompts: as for `generate`. pooling_params: one for all, or one each.
            pooling_task: the task that is expected; None: whatever the model does.

        Raises:
            InvalidRequestError: the model pools nothing, or does another task; or as `generate` does.
        """
        return self._encode(_as_prompts(prompts), pooling_params, use_tqdm, pooling_task)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The embedding of each prompt. Raises as `encode` does."""
        outputs = self._encode(_as_prompts(prompts), pooling_params, use_tqdm, "embed")
        return [output.of(EmbeddingOutput(output.outputs.data)) for output in outputs]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[ClassificationRequestOutput]:
        """The probability of each label, for each prompt. Raises as `encode` does."""
        outputs = self._encode(_as_prompts(prompts), pooling_params, use_tqdm, "classify")
        return [output.of(ClassificationOutput(output.outputs.data)) for output in outputs]

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        instruction: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """The score of each pair: one text with one, one with each of several, or pair by pair.

        A reranker reads both texts at once; of a model for embeddings the score is the cosine of the two.

        Args:
            instruction: what counts as relevant, for rerankers that are told so; None: what the model is used to.

        Raises as `encode` does; also InvalidRequestError when the two sides do not match.
        """
        scoring = Scoring(data_1, data_2, reads_pairs(self.llm_engine.model_config.pooler), instruction)
        return scoring.scores(self._encode(scoring.prompts, pooling_params, use_tqdm))

    def _encode(
        self,
        prompts: Sequence[Input],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None,
        use_tqdm: bool,
        task: PoolingTask | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        params = self._one_each("pooling_params", pooling_params or PoolingParams(), PoolingParams, prompts)
        outputs = self._process_and_run(prompts, [one.expecting(task) for one in params], use_tqdm)
        failed = next((output for output in outputs if output.finish_reason == "abort"), None)
        if failed is not None and failed.stop_reason is not None:
            raise LullmError(f"prompt {outputs.index(failed)} was aborted: {failed.stop_reason}")
        return outputs

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        beam_width: int,
        max_tokens: int = 16,
        *,
        n: int | None = None,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        ignore_eos: bool = False,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """The `n` (default: all) best of `beam_width` hypotheses for each prompt, best first; see `SamplingParams`.

        The beams of a prompt share the KV blocks of their common prefix. Raises as `generate` does.
        """
        params = SamplingParams(
            n=beam_width if n is None else n,
            beam_width=beam_width,
            max_tokens=max_tokens,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            ignore_eos=ignore_eos,
        )
        return self.generate(prompts, params, use_tqdm)

    def get_tokenizer(self) -> "Tokenizer":
        """The model's tokenizer, with its chat template."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What a request without parameters uses: the model's generation_config.json."""
        return self.llm_engine.default_params

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
        """Call `method` on every worker: 'reload_weights', another of `REMOTE_METHODS`, or a function of the worker.

        Returns one answer per worker. Raises as `LLMEngine.collective_rpc` does.
        """
        with self._exclusive():
            return self.llm_engine.collective_rpc(method, timeout, args, kwargs)

    def update_weights(self, weights: "Iterable[tuple[str, torch.Tensor]]") -> int:
        """Replace weights by a trainer's, under the checkpoint's names; how many. Raises as the engine's does."""
        with self._exclusive():
            return self.llm_engine.update_weights(weights)

    def shutdown(self) -> None:
        """Give all memory back; the object cannot be used afterwards. Idempotent."""
        with self._exclusive():
            self.llm_engine.shutdown()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _one_each(self, name: str, value: Any, kind: type, prompts: Sequence[object]) -> list[Any]:
        if value is None:
            value = self.get_default_sampling_params()
        if isinstance(value, kind):
            return [value] * len(prompts)
        if not isinstance(value, Sequence) or not all(isinstance(item, kind) for item in value):
            raise InvalidRequestError(f"{name} must be {kind.__name__} or a list of them", name)
        if len(value) != len(prompts):
            raise InvalidRequestError(f"{len(value)} {name} for {len(prompts)} prompts", name)
        return list(value)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[threading.Event]:
        """The engine for this thread alone. Ctrl-C meanwhile sets the event and breaks nothing off."""
        with self._turn, deferred_interrupt() as interrupt:
            yield interrupt


def _as_prompts(prompts: Any) -> Sequence[Prompt]:
    """One prompt or several -> several. A list of ids is one prompt, and so is an array of one dimension."""
    if isinstance(prompts, (str, dict)):
        return [cast(Prompt, prompts)]
    if hasattr(prompts, "tolist"):
        prompts = prompts.tolist()
    if not isinstance(prompts, (list, tuple)):
        raise InvalidRequestError(f"prompts must be a prompt or a list of them, not {type(prompts).__name__}", "prompt")
    return [prompts] if prompts and integers(prompts) is not None else prompts
