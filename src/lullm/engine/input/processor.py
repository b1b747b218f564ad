"""InputProcessor: the one door for requests, from what a caller states to a `GenerateRequest`.

All faces use it. Nothing else renders a request's chat template, tokenizes it or checks it.
"""

from lullm.config.generation import OutputRules
from lullm.config.model import ModelConfig
from lullm.config.option.option import has_utf8
from lullm.config.resolved import ResolvedConfig
from lullm.engine.input.generation import GenerationInput
from lullm.engine.input.limits import RequestLimits
from lullm.engine.input.pooling import PoolingInput
from lullm.engine.input.prompt import PromptReader
from lullm.engine.lora.adapters import as_lora, check_enabled
from lullm.errors import InvalidRequestError
from lullm.text.tokenizer import Tokenizer
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import CallerRequest, Conversation, GenerateRequest, Prompt
from lullm.types.sampling_params import SamplingParams


class InputProcessor:
    """Renders, tokenizes and validates for one engine. Safe to call from several threads.

    Attributes:
        prompt_adapters: those whose rows may stand before prompts.
        seeds: of requests that bring none.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        model: ModelConfig,
        tokenizer: Tokenizer,
        eos_token_ids: tuple[int, ...],
        rules: OutputRules = OutputRules(),  # noqa: B008  # frozen
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._limits = RequestLimits.of(config, model)
        self._reader = PromptReader(config, model, tokenizer, rules)
        self._generation = GenerationInput(config, model, tokenizer, eos_token_ids, rules, self._reader)
        self._pooling = PoolingInput(config, model, tokenizer, self._reader)
        self.prompt_adapters = self._generation.prompt_adapters
        self.seeds = self._generation.seeds

    def process(self, asked: CallerRequest, may_block: bool = True) -> GenerateRequest:
        """The validated request. Rendering a chat template may take seconds, in another process.

        Raises:
            WouldBlock: the call would block, and `may_block` is False.
            InvalidRequestError: the prompt is empty, too long or not a prompt; the model has no chat template, or it
                refuses the messages; a token id or a number is out of the model's range; a grammar is wrong;
                best-of-several is to be streamed; the model does not generate, or not pool, as the request asks; it
                has an adapter and the engine takes none; or its rows are none of this model.
        """
        self._check_place(asked)
        if asked.lora is not None:
            as_lora(asked.lora)
            check_enabled(self._config)
        if isinstance(asked.params, PoolingParams):
            return self._pooling.request(asked, asked.params, may_block)
        if isinstance(asked.params, SamplingParams):
            # a copy: the caller may change its object later, or since it was checked
            return self._generation.request(asked, asked.params.clone(), may_block)
        raise InvalidRequestError(f"sampling_params must be SamplingParams, not {type(asked.params).__name__}")

    def tokenize(
        self, prompt: Prompt | Conversation, add_special_tokens: bool = True, may_block: bool = True
    ) -> list[int]:
        """Token ids of a caller's prompt of any length. A conversation has the special tokens of its template.

        Raises:
            InvalidRequestError: see `process`: the prompt's form, or the messages.
            WouldBlock: see `process`.
        """
        return self._reader.tokenize(prompt, add_special_tokens, may_block)

    def detokenize(self, token_ids: list[int]) -> str:
        """The text of `token_ids`, special tokens included. Raises InvalidRequestError: an id is not in the model."""
        self._limits.check_ids("tokens", token_ids)
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def _check_place(self, asked: CallerRequest) -> None:
        """Check a request's name, and its place in the queue."""
        request_id, priority = asked.request_id, asked.priority
        if not isinstance(request_id, str) or not request_id or not has_utf8(request_id):
            raise InvalidRequestError(
                f"request_id must be a non-empty string without lone surrogates, not {request_id!r}", "request_id"
            )
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise InvalidRequestError(f"priority must be an integer, not {priority!r}", "priority")
        if priority and self._config.scheduling_policy != "priority":
            raise InvalidRequestError("priority needs an engine with scheduling_policy='priority'", "priority")
