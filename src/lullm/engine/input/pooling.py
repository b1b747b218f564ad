"""PoolingInput: makes requests for vectors and scores."""

import time
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.engine.input.form import cache_salt, prompt_field, truncated
from lullm.engine.input.limits import RequestLimits
from lullm.engine.input.prompt import PromptReader, ReadPrompt
from lullm.engine.pooling.encoder_only import EncoderOnlyInput
from lullm.engine.pooling.rules import check_rows, resolved_pooling
from lullm.errors import InvalidRequestError
from lullm.text.tokenizer import Tokenizer
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import NO_TOKENS, CallerRequest, GenerateRequest, TextPair


class PoolingInput:
    """Makes the requests of one engine for vectors. Safe to call from several threads."""

    def __init__(self, config: ResolvedConfig, model: ModelConfig, tokenizer: Tokenizer, reader: PromptReader) -> None:
        self._model = model
        self._reader = reader
        self._limits = RequestLimits.of(config, model)
        self._encoder_only = EncoderOnlyInput(tokenizer, config.max_model_len) if model.family.encoder_only else None

    def request(self, asked: CallerRequest, params: PoolingParams, may_block: bool) -> GenerateRequest:
        """The checked request.

        Raises:
            InvalidRequestError: see `InputProcessor.process`.
            WouldBlock: the call would block, and `may_block` is False.
        """
        if asked.prompt_adapter is not None:
            raise InvalidRequestError("prompt adapters are for next tokens", "prompt_adapter_request")
        pooling = resolved_pooling(self._model, params)
        num_kept, second_text = params.truncate_prompt_tokens, None
        if self._encoder_only is not None and isinstance(asked.prompt, TextPair):
            text, token_ids, second_text = self._encoder_only.pair(asked.prompt, num_kept)
            read = ReadPrompt(text, token_ids)
        else:
            read = self._cut(self._reader.read(asked.prompt, may_block), num_kept)
        self._limits.check_prompt(prompt_field(asked.prompt), read.token_ids, num_drawn=0)
        check_rows(self._model, pooling, read.token_ids)
        return GenerateRequest(
            request_id=asked.request_id,
            prompt=read.text,
            prompt_token_ids=read.token_ids,
            params=NO_TOKENS,
            seed=0,
            arrival_time=time.monotonic(),
            priority=asked.priority,
            pooling=pooling,
            cache_salt=cache_salt(asked.prompt),
            lora=asked.lora,
            tiles=read.tiles,
            encoded=read.encoded,
            second_text=second_text,
        )

    def _cut(self, read: ReadPrompt, num_kept: int | None) -> ReadPrompt:
        """The prompt without the tokens that are too many."""
        if num_kept is None:
            return read
        cut = truncated if self._encoder_only is None else self._encoder_only.truncated
        return replace(read, token_ids=cut(read.token_ids, num_kept, self._limits.max_model_len, read.tiles))
