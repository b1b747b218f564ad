"""Preparation: what a client does with a request before an engine sees it. Loads no torch."""

import asyncio
import contextlib
from abc import ABC, abstractmethod

from lullm.config.resolved import IdleConfig
from lullm.engine.caller.length import LONG_CHARS, num_chars, num_param_chars
from lullm.engine.input.processor import InputProcessor
from lullm.engine.rows.adapters import PromptAdapters
from lullm.engine.start.model import OpenedModel
from lullm.text.template.failure import WouldBlock
from lullm.text.tokenizer import Tokenizer
from lullm.types.request import CallerRequest, Conversation, GenerateRequest, Prompt


class Preparation(ABC):
    """Renders, tokenizes and checks requests beside an event loop. Base of `EngineClient`.

    Args:
        model: with the config that the engine runs with.
        processor: the engine's, if it is in this process.

    Attributes:
        default_params: the model's generation_config.json.
        stated_params: the names of those that it, or an option, sets.
        remote_methods: the names that `collective_rpc` takes: `REMOTE_METHODS` and methods of `worker_extension_cls`.
    """

    def __init__(
        self,
        model: OpenedModel,
        idle: IdleConfig,
        remote_methods: frozenset[str],
        processor: InputProcessor | None = None,
    ):
        self.config, self.model_config, self.tokenizer = model.config, model.model_config, model.tokenizer
        self.default_params, self.stated_params = model.default_params, model.stated_params
        self.idle = idle
        self.remote_methods = remote_methods
        self.input_processor = processor or model.input_processor()

    @property
    def prompt_adapters(self) -> PromptAdapters:
        """The prompt adapters that requests may name; reading one blocks."""
        return self.input_processor.prompt_adapters

    @abstractmethod
    def check_running(self) -> None:
        """Check that the engine serves. Raises EngineDeadError otherwise, with the cause."""

    async def prepare(self, asked: CallerRequest) -> GenerateRequest:
        """Render, tokenize and check a request. Long ones are prepared in a thread, so that the event loop goes on.

        Args:
            asked: `lullm.types.request.CallerRequest(request_id, prompt, params, priority=0, lora=None,
                prompt_adapter=None)`.

        Raises:
            InvalidRequestError: the request can never be served.
            EngineDeadError: the engine takes no new requests.
        """
        self.check_running()
        if num_chars(asked.prompt) + num_param_chars(asked.params) <= LONG_CHARS:
            with contextlib.suppress(WouldBlock):
                return self.input_processor.process(asked, may_block=False)
        return await asyncio.to_thread(self.input_processor.process, asked)

    async def tokenize(self, prompt: Prompt | Conversation, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt of any length. Raises InvalidRequestError, as `prepare` does."""
        if num_chars(prompt) <= LONG_CHARS:
            with contextlib.suppress(WouldBlock):
                return self.input_processor.tokenize(prompt, add_special_tokens, may_block=False)
        return await asyncio.to_thread(self.input_processor.tokenize, prompt, add_special_tokens)

    async def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, with its chat template."""
        return self.tokenizer

    async def detokenize(self, token_ids: list[int]) -> str:
        """The text of `token_ids`, special tokens included. Raises InvalidRequestError: an id is not in the model."""
        if len(token_ids) > LONG_CHARS:
            return await asyncio.to_thread(self.input_processor.detokenize, token_ids)
        return self.input_processor.detokenize(token_ids)
