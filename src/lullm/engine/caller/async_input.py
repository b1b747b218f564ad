"""AsyncInput: the door for requests, on an event loop that must go on meanwhile."""

import asyncio
import contextlib

from lullm.engine.input import InputProcessor, num_chars
from lullm.text.template.failure import WouldBlock
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import Conversation, GenerateRequest, Input, Prompt
from lullm.types.sampling_params import SamplingParams

_LONG_CHARS = 4096
"""Longer texts are worked on in a thread: so many characters take 0.9 ms to tokenize, the way to a thread 0.1 ms, and
a megabyte would stop the event loop for half a second."""


class AsyncInput:
    """An `InputProcessor` whose long work runs in a thread."""

    def __init__(self, processor: InputProcessor):
        self._processor = processor

    async def prepare(
        self, request_id: str, prompt: Input, params: SamplingParams | PoolingParams, priority: int
    ) -> GenerateRequest:
        """Render, tokenize and check a request. Raises InvalidRequestError."""
        bad_words = params.bad_words if isinstance(params, SamplingParams) else None
        if num_chars(prompt) + sum(map(len, bad_words or ())) <= _LONG_CHARS:
            with contextlib.suppress(WouldBlock):
                return self._processor.process(request_id, prompt, params, priority, may_block=False)
        return await asyncio.to_thread(self._processor.process, request_id, prompt, params, priority)

    async def tokenize(self, prompt: Prompt | Conversation, add_special_tokens: bool) -> list[int]:
        """Token ids of a prompt of any length. Raises InvalidRequestError, as `prepare` does."""
        if num_chars(prompt) <= _LONG_CHARS:
            with contextlib.suppress(WouldBlock):
                return self._processor.tokenize(prompt, add_special_tokens, may_block=False)
        return await asyncio.to_thread(self._processor.tokenize, prompt, add_special_tokens)

    async def detokenize(self, token_ids: list[int]) -> str:
        """The text of `token_ids`, special tokens included. Raises InvalidRequestError: one is not in the model."""
        if len(token_ids) > _LONG_CHARS:
            return await asyncio.to_thread(self._processor.detokenize, token_ids)
        return self._processor.detokenize(token_ids)
