"""GenerationInput: makes requests for tokens."""

import time
from collections.abc import Sequence
from dataclasses import replace

from lullm.config.generation import OutputRules
from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.engine.encoder.rules import RuleMaker
from lullm.engine.input.form import cache_salt, prompt_field, suffix_of, truncated
from lullm.engine.input.guides import RequestGuides
from lullm.engine.input.limits import RequestLimits
from lullm.engine.input.prompt import PromptReader, ReadPrompt
from lullm.engine.input.seeds import RequestSeeds
from lullm.engine.pooling.rules import check_generates
from lullm.engine.rows.adapters import PromptAdapters
from lullm.engine.rows.values import placed
from lullm.errors import InvalidRequestError
from lullm.text.bad_words import bad_words_ids
from lullm.text.guided.guides import GuideMaker
from lullm.text.tokenizer import Tokenizer
from lullm.types.reply.rules import ReplyRules
from lullm.types.request import CallerRequest, Conversation, GenerateRequest, Input
from lullm.types.sampling_params import SamplingParams
from lullm.types.vision.given import GivenRows


class GenerationInput:
    """Makes the requests of one engine for tokens. Safe to call from several threads.

    Args:
        eos_token_ids: the tokens that end an output.
        rules: of the model's generation_config.json.
        reader: of the prompts.

    Attributes:
        prompt_adapters: those whose rows may stand before prompts.
        seeds: of requests without one.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        model: ModelConfig,
        tokenizer: Tokenizer,
        eos_token_ids: tuple[int, ...],
        rules: OutputRules,
        reader: PromptReader,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._reader = reader
        self._limits = RequestLimits.of(config, model)
        guides = GuideMaker(tokenizer, eos_token_ids, model.vocab_size)
        self._guides = RequestGuides(guides, reader.replies, eos_token_ids)
        self._rules = RuleMaker(rules, tokenizer, eos_token_ids, model.vocab_size)
        self.prompt_adapters = PromptAdapters(config, model)
        self.seeds = RequestSeeds(config.seed)

    def request(self, asked: CallerRequest, params: SamplingParams, may_block: bool) -> GenerateRequest:
        """The checked request. `params`: its own, which are changed here.

        Raises:
            InvalidRequestError: see `InputProcessor.process`.
            WouldBlock: the call would block, and `may_block` is False.
        """
        given = self.prompt_adapters.rows(asked.prompt_adapter, may_block)
        check_generates(self._model)
        self._limits.check_params(params)
        read = self._begun(self._reader.read(asked.prompt, may_block), params, given)
        self._limits.check_prompt(prompt_field(asked.prompt), read.token_ids, num_drawn=1)
        reply = self._reply(asked.prompt, read, params)
        guide = self._guides.of(params, reply, may_block)
        return GenerateRequest(
            request_id=asked.request_id,
            prompt=read.text,
            prompt_token_ids=read.token_ids,
            params=params,
            seed=self.seeds.draw() if params.seed is None else params.seed,
            arrival_time=time.monotonic(),
            priority=asked.priority,
            end_token_ids=() if params.ignore_eos else self._end_ids(asked.prompt),
            bad_words_ids=tuple(bad_words_ids(self._tokenizer, params.bad_words)) if params.bad_words else (),
            guide=guide,
            cache_salt=cache_salt(asked.prompt),
            reply=reply,
            lora=asked.lora,
            prompt_adapter=asked.prompt_adapter,
            tiles=read.tiles,
            encoded=read.encoded,
            rules=self._rules.of(params, read.token_ids),
        )

    def _begun(self, read: ReadPrompt, params: SamplingParams, given: Sequence[GivenRows]) -> ReadPrompt:
        """The prompt to go on from: cut to its length, behind the rows of its prompt adapter."""
        token_ids, tiles = read.token_ids, read.tiles
        if params.truncate_prompt_tokens is not None:
            num_most = self._limits.max_model_len - sum(rows.num_rows for rows in given) - (params.max_tokens or 1)
            token_ids = truncated(token_ids, params.truncate_prompt_tokens, max(num_most, 1), tiles)
        token_ids, tiles = placed(given if token_ids else (), token_ids, tiles)  # rows alone are no prompt
        if params.prompt_logprobs is not None and any(isinstance(place.tile, GivenRows) for place in tiles):
            raise InvalidRequestError(
                "prompt_logprobs are of token ids, and rows of prompt_embeds or of a prompt adapter have none; leave "
                "them out",
                "prompt_logprobs",
            )
        return replace(read, token_ids=token_ids, tiles=tiles)

    def _reply(self, prompt: Input, read: ReadPrompt, params: SamplingParams) -> ReplyRules | None:
        """How the answer to a conversation is read; None: as text."""
        reply = self._reader.replies.rules(prompt, read.text or "") if isinstance(prompt, Conversation) else None
        if params.thinking_token_budget is not None and (reply is None or reply.thinking is None):
            raise InvalidRequestError(
                "thinking_token_budget needs a conversation with a model whose thoughts are known (reasoning_parser)",
                "thinking_token_budget",
            )
        return reply

    def _end_ids(self, prompt: Input) -> tuple[int, ...]:
        if suffix_of(prompt) is None:
            return self._eos_token_ids
        return tuple(dict.fromkeys(self._eos_token_ids + self._tokenizer.infill().end))
