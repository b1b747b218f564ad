"""Reception: what every `EngineClient` does alike before a request enters, on an event loop that must go on."""

import asyncio
import contextlib
from abc import ABC, abstractmethod

from lullm.engine.input import InputProcessor
from lullm.text.template.failure import WouldBlock
from lullm.text.template.meter import deep_size
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import Conversation, GenerateRequest, Input, Prompt, TextPair
from lullm.types.sampling_params import SamplingParams

_LONG_CHARS = 4096
"""Longer texts are worked on in a thread: so many characters take 0.9 ms to tokenize, the way to a thread 0.1 ms, and
a megabyte would stop the event loop for half a second."""

_MESSAGE_CHARS = 10
"""Rendering a message takes 2 us beside its text: the time to tokenize so many characters."""
_MUCH = 1_000_000


class Reception(ABC):
    """Renders, tokenizes and checks requests; the engine itself is the business of the client that is built on it."""

    def __init__(self, processor: InputProcessor):
        self._input = processor

    @abstractmethod
    def check_running(self) -> None:
        """Return if the engine takes requests. Raises EngineDeadError otherwise, with the cause."""

    async def prepare(
        self, request_id: str, prompt: Input, params: SamplingParams | PoolingParams, priority: int = 0
    ) -> GenerateRequest:
        """Render, tokenize and check a request. Raises InvalidRequestError, EngineDeadError."""
        self.check_running()
        if num_chars(prompt) + _num_given(params) <= _LONG_CHARS:
            with contextlib.suppress(WouldBlock):
                return self._input.process(request_id, prompt, params, priority, may_block=False)
        return await asyncio.to_thread(self._input.process, request_id, prompt, params, priority)

    async def tokenize(self, prompt: Prompt | Conversation, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt of any length. Raises InvalidRequestError, as `prepare` does."""
        if num_chars(prompt) <= _LONG_CHARS:
            with contextlib.suppress(WouldBlock):
                return self._input.tokenize(prompt, add_special_tokens, may_block=False)
        return await asyncio.to_thread(self._input.tokenize, prompt, add_special_tokens)

    async def detokenize(self, token_ids: list[int]) -> str:
        """The text of `token_ids`, special tokens included. Raises InvalidRequestError: one is not in the model."""
        if len(token_ids) > _LONG_CHARS:
            return await asyncio.to_thread(self._input.detokenize, token_ids)
        return self._input.detokenize(token_ids)


def _num_given(params: SamplingParams | PoolingParams) -> int:
    """What of parameters may be long, as a number of characters: 200,000 biases took the event loop half a second."""
    if not isinstance(params, SamplingParams):
        return 0
    lists = (params.logit_bias, params.allowed_token_ids, params.stop_token_ids)
    return sum(map(len, params.bad_words or ())) + sum(len(each) for each in lists if each)


def num_chars(prompt: Input) -> int:
    """About how much work a prompt is, in characters to tokenize; a token id counts as one. Takes any object."""
    if isinstance(prompt, TextPair):
        return _len(prompt.query) + _len(prompt.document)
    if isinstance(prompt, Conversation):
        if not isinstance(prompt.messages, (list, tuple)):
            return 0
        num_option_chars = deep_size(prompt.options, _MUCH)[0] if prompt.options else 0
        return num_option_chars + sum(_MESSAGE_CHARS + _num_chars(message) for message in prompt.messages)
    if isinstance(prompt, dict):
        return max(_len(prompt.get("prompt")), _len(prompt.get("prompt_token_ids")))
    return _len(prompt)


def _num_chars(message: object) -> int:
    """Of a message's content, and of what it has beside role and content."""
    if not isinstance(message, dict):
        return 0
    content = message.get("content")
    others = {name: value for name, value in message.items() if name not in ("role", "content")}
    num_other_chars = deep_size(others, _MUCH)[0] if others else 0
    if isinstance(content, (list, tuple)):
        return num_other_chars + sum(_len(part.get("text")) for part in content if isinstance(part, dict))
    return num_other_chars + _len(content)


def _len(value: object) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0
