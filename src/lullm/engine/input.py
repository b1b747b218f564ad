"""InputProcessor: from what a caller passes to a `GenerateRequest`. Everything that can be wrong is found here."""

import random
import time
from collections.abc import Iterable

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.errors import InvalidRequestError
from lullm.text.bad_words import bad_words_ids
from lullm.text.tokenizer import Tokenizer
from lullm.types.request import GenerateRequest, Prompt
from lullm.types.sampling_params import SamplingParams, integers


class InputProcessor:
    """Tokenizes and validates requests for one engine. Safe to call from several threads."""

    def __init__(
        self, config: ResolvedConfig, model: ModelConfig, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._max_model_len = config.max_model_len
        self._max_logprobs = config.max_logprobs
        self._vocab_size = model.vocab_size
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._seeds = random.Random(config.seed)

    def process(self, request_id: str, prompt: Prompt, params: SamplingParams, priority: int = 0) -> GenerateRequest:
        """The validated request.

        Raises:
            InvalidRequestError: the prompt is empty, too long or not a prompt; a token id or a number is out of the
                model's range.
        """
        if not isinstance(request_id, str) or not request_id:
            raise InvalidRequestError(f"request_id must be a non-empty string, not {request_id!r}", "request_id")
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"sampling_params must be SamplingParams, not {type(params).__name__}")
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise InvalidRequestError(f"priority must be an integer, not {priority!r}", "priority")
        text, token_ids = self._tokenize(prompt)
        if not token_ids:
            raise InvalidRequestError("the prompt is empty; it needs at least one token", "prompt")
        if len(token_ids) >= self._max_model_len:
            raise InvalidRequestError(
                f"the prompt has {len(token_ids)} tokens; with a model length of {self._max_model_len} (max_model_len) "
                f"it may have at most {self._max_model_len - 1}, since one more is generated",
                "prompt",
            )
        self._check_ids("prompt", token_ids)
        self._check_params(params)
        return GenerateRequest(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=token_ids,
            params=params,
            seed=self._seeds.getrandbits(63) if params.seed is None else params.seed,
            arrival_time=time.monotonic(),
            priority=priority,
            end_token_ids=() if params.ignore_eos else self._eos_token_ids,
            bad_words_ids=tuple(bad_words_ids(self._tokenizer, params.bad_words)) if params.bad_words else (),
        )

    def _tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        text: str | None = None
        ids: object = prompt
        if isinstance(prompt, dict):
            unknown = set(prompt) - {"prompt", "prompt_token_ids"}
            if unknown:
                raise InvalidRequestError(
                    f"a prompt dict holds 'prompt' or 'prompt_token_ids', not {sorted(map(str, unknown))}", "prompt"
                )
            text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
            if text is None and ids is None:
                raise InvalidRequestError(
                    "a prompt dict needs 'prompt' or 'prompt_token_ids'; it has neither", "prompt"
                )
            if text is not None and not isinstance(text, str):
                raise InvalidRequestError(f"prompt must be a string, not {type(text).__name__}", "prompt")
        elif isinstance(prompt, str):
            text, ids = prompt, None
        if ids is None and text is not None:
            return text, self._tokenizer.encode(text)
        token_ids = integers(ids)
        if token_ids is None:
            raise InvalidRequestError(
                "a prompt is a string, a list of token ids, or a dict with prompt or prompt_token_ids", "prompt"
            )
        return text, token_ids

    def _check_params(self, params: SamplingParams) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(params, name)
            if value is not None and value > self._max_logprobs:
                raise InvalidRequestError(
                    f"{name}={value} is above the engine's limit of {self._max_logprobs} (max_logprobs)", name
                )
        self._check_ids("stop_token_ids", params.stop_token_ids or ())
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self._check_ids("logit_bias", params.logit_bias or ())

    def _check_ids(self, name: str, ids: Iterable[int]) -> None:
        for token_id in ids:
            if not 0 <= token_id < self._vocab_size:
                raise InvalidRequestError(
                    f"{name} holds the token id {token_id}; the model has the ids 0 to {self._vocab_size - 1}", name
                )
