"""InputProcessor: the one door for requests, from a caller's prompt and parameters to a `GenerateRequest`.

All faces use it. Nothing else renders a request's chat template, tokenizes it or checks it.
"""

import functools
import random
import time
from collections.abc import Sequence
from dataclasses import replace

from lullm.config.generation import OutputRules
from lullm.config.model import ModelConfig
from lullm.config.option.option import has_utf8
from lullm.config.resolved import ResolvedConfig
from lullm.engine.caller.limits import RequestLimits
from lullm.engine.caller.prompt_form import cache_salt, prompt_field, suffix_of, text_or_ids, truncated
from lullm.engine.caller.tools import check_calls_alone, tools_error
from lullm.engine.encoder.rules import RuleMaker
from lullm.engine.encoder.sounds import SoundInput
from lullm.engine.encoder.texts import TextInput
from lullm.engine.hearing.sounds import HeardInput
from lullm.engine.lora.adapters import as_lora, check_enabled
from lullm.engine.pooling.encoder_only import EncoderOnlyInput
from lullm.engine.pooling.rules import check_generates, check_rows, resolved_pooling
from lullm.engine.rows.adapters import PromptAdapters
from lullm.engine.rows.embeds import FIELD as EMBEDS
from lullm.engine.rows.embeds import EmbedsReader
from lullm.engine.rows.values import placed
from lullm.engine.vision.pictures import PictureInput
from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.text.bad_words import bad_words_ids
from lullm.text.chat_template import ChatTemplate
from lullm.text.guided.guides import GuideMaker
from lullm.text.pair import PairReader
from lullm.text.reply.replies import Replies
from lullm.text.tokenizer import Tokenizer
from lullm.types.guided.params import Guide
from lullm.types.lora.prompt_adapter import PromptAdapterRequest
from lullm.types.lora.request import LoRARequest
from lullm.types.pooling.params import PoolingParams
from lullm.types.reply.rules import ReplyRules
from lullm.types.request import NO_TOKENS, Conversation, GenerateRequest, Input, Prompt, TextPair
from lullm.types.sampling_params import SamplingParams
from lullm.types.vision.given import GivenRows
from lullm.types.vision.tile import TilePlace


class InputProcessor:
    """Renders, tokenizes and validates for one engine. Safe to call from several threads.

    Attributes:
        prompt_adapters: those whose rows may stand before prompts.
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
        self._model = model
        self._pictures = PictureInput(config, model, tokenizer)
        self._sounds = HeardInput(config, model, tokenizer)
        self._encoder: SoundInput | TextInput | None = None
        if model.encoder is not None and model.encoder.reads == "audio":
            self._encoder = SoundInput(model.encoder)
        elif model.encoder is not None:
            self._encoder = TextInput(model.encoder, rules.starts(model.encoder.start_ids), model.vocab_size)
        self._rules = RuleMaker(rules, tokenizer, eos_token_ids, model.vocab_size)
        self._embeds = EmbedsReader(config, model)
        self.prompt_adapters = PromptAdapters(config, model)
        self._pairs = PairReader(tokenizer, model.pooler.pair_form if model.pooler else None)
        self._of_encoder = EncoderOnlyInput(tokenizer, config.max_model_len) if model.family.encoder_only else None
        most_logprobs = model.vocab_size if config.max_logprobs == -1 else config.max_logprobs
        self._limits = RequestLimits(config.max_model_len, model.vocab_size, most_logprobs)
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._splits_conversations = config.split_special_tokens is not False
        self._splits_prompts = config.split_special_tokens is True
        self._seeds = random.Random(config.seed)
        self._guides = GuideMaker(tokenizer, eos_token_ids, model.vocab_size)
        self._by_priority = config.scheduling_policy == "priority"
        read = functools.partial(_read_template, tokenizer)  # not a method: a circle would outlive the engine
        self._other_template = functools.lru_cache(maxsize=4)(read)  # a batch compiles its template once
        self._replies = Replies(tokenizer, config.tool_call_parser, config.reasoning_parser, config.think)

    @property
    def seed_state(self) -> tuple[int, list[int]]:
        """The state of the generator from which requests without a seed draw theirs: version and numbers."""
        version, numbers, _ = self._seeds.getstate()
        return version, list(numbers)

    def restore_seeds(self, version: int, numbers: Sequence[int]) -> None:
        """Go on from this state. Raises ValueError, TypeError, OverflowError: it is no state."""
        self._seeds.setstate((version, tuple(numbers), None))

    def process(
        self,
        request_id: str,
        prompt: Input,
        params: SamplingParams | PoolingParams,
        priority: int = 0,
        may_block: bool = True,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
    ) -> GenerateRequest:
        """The validated request. Rendering a chat template may take seconds, in another process.

        Raises:
            WouldBlock: the call would block, and `may_block` is False.
            InvalidRequestError: the prompt is empty, too long or not a prompt; the model has no chat template, or it
                refuses the messages; a token id or a number is out of the model's range; a grammar is wrong;
                best-of-several is to be streamed; the model does not generate, or not pool, as the request asks; it
                has an adapter and the engine takes none; or its rows are none of this model.
        """
        self._check_place(request_id, priority)
        if lora_request is not None:
            as_lora(lora_request)
            check_enabled(self._config)
        given = self.prompt_adapters.rows(prompt_adapter_request, may_block)
        if isinstance(params, PoolingParams):
            if given:
                raise InvalidRequestError("prompt adapters are for next tokens", "prompt_adapter_request")
            request = self._process_pooling(request_id, prompt, params, priority, may_block)
        elif isinstance(params, SamplingParams):
            # a copy: the caller may change its object later, or since it was checked
            request = self._process_generating(request_id, prompt, params.clone(), priority, given, may_block)
        else:
            raise InvalidRequestError(f"sampling_params must be SamplingParams, not {type(params).__name__}")
        return replace(request, lora=lora_request, prompt_adapter=prompt_adapter_request)

    def _process_generating(
        self,
        request_id: str,
        prompt: Input,
        params: SamplingParams,
        priority: int,
        given: Sequence[GivenRows],
        may_block: bool,
    ) -> GenerateRequest:
        """A request for tokens. `given`: rows of its prompt adapter."""
        check_generates(self._model)
        self._limits.check_params(params)
        own, encoded = (prompt, None) if self._encoder is None else self._read(self._encoder, prompt, may_block)
        text, token_ids, tiles = self._begun(own, params, given, is_encoded=encoded is not None, may_block=may_block)
        self._limits.check_prompt(prompt_field(prompt), token_ids, num_drawn=1)
        reply = self._replies.rules(prompt, text or "") if isinstance(prompt, Conversation) else None
        if params.thinking_token_budget is not None and (reply is None or reply.thinking is None):
            raise InvalidRequestError(
                "thinking_token_budget needs a conversation with a model whose thoughts are known (reasoning_parser)",
                "thinking_token_budget",
            )
        guide = self._guide(params, reply, may_block)
        return GenerateRequest(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=token_ids,
            params=params,
            seed=self._seeds.getrandbits(63) if params.seed is None else params.seed,
            arrival_time=time.monotonic(),
            priority=priority,
            end_token_ids=() if params.ignore_eos else self._end_ids(prompt),
            bad_words_ids=tuple(bad_words_ids(self._tokenizer, params.bad_words)) if params.bad_words else (),
            guide=guide,
            cache_salt=cache_salt(prompt),
            reply=reply,
            tiles=tiles,
            encoded=encoded,
            rules=self._rules.of(params, token_ids),
        )

    def _check_place(self, request_id: str, priority: int) -> None:
        """Check a request's name, and its place in the queue."""
        if not isinstance(request_id, str) or not request_id or not has_utf8(request_id):
            raise InvalidRequestError(
                f"request_id must be a non-empty string without lone surrogates, not {request_id!r}", "request_id"
            )
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise InvalidRequestError(f"priority must be an integer, not {priority!r}", "priority")
        if priority and not self._by_priority:
            raise InvalidRequestError("priority needs an engine with scheduling_policy='priority'", "priority")

    def _begun(
        self, prompt: Input, params: SamplingParams, given: Sequence[GivenRows], is_encoded: bool, may_block: bool
    ) -> tuple[str | None, list[int], tuple[TilePlace, ...]]:
        """As `_encoded`, for a prompt to go on: cut to its length, behind the rows of its prompt adapter."""
        # The prompt of a decoder beside an encoder begins with words of its own, spelled out.
        text, token_ids, tiles = self._encoded(prompt, add_special_tokens=not is_encoded, may_block=may_block)
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
        return text, token_ids, tiles

    def _guide(self, params: SamplingParams, reply: ReplyRules | None, may_block: bool) -> Guide | None:
        """The guide of the reply: its grammar, and the tools that it must call."""
        form = params.structured_outputs
        if reply is None:
            return self._guides.make(form, may_block)
        if form is not None and reply.calls.choice == "required":
            raise InvalidRequestError("a tool must be called, so the text cannot have a form", "structured_outputs")
        try:
            outer = self._replies.grammar(reply, self._eos_token_ids, has_form=form is not None)
            if outer is not None and reply.tools:
                check_calls_alone(params)
            return self._guides.make(form, may_block, outer)
        except InvalidRequestError as error:
            if not reply.tools or error.param != "structured_outputs":
                raise
            if form is not None:
                self._guides.make(form, may_block)  # raises the errors of the caller's own grammar
            raise InvalidRequestError(tools_error(str(error)), "tools") from None

    def _end_ids(self, prompt: Input) -> tuple[int, ...]:
        if suffix_of(prompt) is None:
            return self._eos_token_ids
        return tuple(dict.fromkeys(self._eos_token_ids + self._tokenizer.infill().end))

    def _process_pooling(
        self, request_id: str, prompt: Input, params: PoolingParams, priority: int, may_block: bool
    ) -> GenerateRequest:
        pooling = resolved_pooling(self._model, params)
        of_encoder, num_kept, second = self._of_encoder, params.truncate_prompt_tokens, None
        tiles: tuple[TilePlace, ...] = ()
        encoded: TilePlace | None = None
        text: str | None
        if self._encoder is not None:
            own, encoded = self._read(self._encoder, prompt, may_block)
            text, token_ids, _ = self._encoded(own, add_special_tokens=False, may_block=may_block)
        elif of_encoder is not None and isinstance(prompt, TextPair):
            text, token_ids, second = of_encoder.pair(prompt, num_kept)
        else:
            text, token_ids, tiles = self._encoded(prompt, add_special_tokens=True, may_block=may_block)
            if num_kept is not None:
                cut = truncated if of_encoder is None else of_encoder.truncated
                token_ids = cut(token_ids, num_kept, self._limits.max_model_len, tiles)
        self._limits.check_prompt(prompt_field(prompt), token_ids, num_drawn=0)
        check_rows(self._model, pooling, token_ids)
        request = GenerateRequest(request_id, text, token_ids, NO_TOKENS, 0, time.monotonic(), priority)
        salt = cache_salt(prompt)
        return replace(request, pooling=pooling, cache_salt=salt, tiles=tiles, encoded=encoded, second_text=second)

    def tokenize(
        self, prompt: Prompt | Conversation, add_special_tokens: bool = True, may_block: bool = True
    ) -> list[int]:
        """Token ids of a caller's prompt of any length. A conversation has the special tokens of its template.

        Raises:
            InvalidRequestError: see `process`: the prompt's form, or the messages.
            WouldBlock: see `process`.
        """
        own: Input = prompt if self._encoder is None else self._encoder.split(prompt)[0]
        adds = add_special_tokens and not isinstance(self._encoder, SoundInput)
        return self._encoded(own, adds, may_block)[1]

    def detokenize(self, token_ids: list[int]) -> str:
        """The text of `token_ids`, special tokens included. Raises InvalidRequestError: an id is not in the model."""
        self._limits.check_ids("tokens", token_ids)
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def _read(self, encoder: SoundInput | TextInput, prompt: Input, may_block: bool) -> tuple[Input, TilePlace]:
        """The decoder's prompt, and what the encoder reads."""
        try:
            if isinstance(encoder, SoundInput):
                return encoder.take(prompt, may_block)
            return encoder.take(prompt, may_block, lambda given: self._text_and_ids(given, True, may_block)[1])
        except InvalidRequestError as error:
            raise InvalidRequestError(str(error), error.param or prompt_field(prompt), error.code) from None

    def _encoded(
        self, prompt: Input, add_special_tokens: bool, may_block: bool
    ) -> tuple[str | None, list[int], tuple[TilePlace, ...]]:
        """The prompt's text if it has one, its token ids, and the tiles of its pictures or sounds, or its rows."""
        try:
            if isinstance(prompt, dict) and prompt.get(EMBEDS) is not None:
                return self._embeds.read(prompt, may_block)
            prompt, sounds = self._sounds.take(prompt, may_block)
            prompt, pictures = self._pictures.take(prompt, may_block)
            text, token_ids = self._text_and_ids(prompt, add_special_tokens, may_block)
            token_ids, heard = self._sounds.place(token_ids, sounds)
            token_ids, seen = self._pictures.place(token_ids, pictures)
            return text, token_ids, heard or seen  # no model has both
        except InvalidRequestError as error:
            raise InvalidRequestError(str(error), error.param or prompt_field(prompt), error.code) from None

    def _text_and_ids(self, prompt: Input, add_special_tokens: bool, may_block: bool) -> tuple[str | None, list[int]]:
        """The prompt's token ids, and its text if it has one."""
        if isinstance(prompt, TextPair):
            return self._pairs.encode(prompt, self._splits_prompts, self._splits_conversations, may_block)
        if isinstance(prompt, Conversation):
            splits = prompt.split_special_tokens
            splits = self._splits_conversations if splits is None else splits
            options = self._replies.options(prompt)
            template = None if prompt.template is None else self._other_template(prompt.template)
            return self._tokenizer.encode_conversation(prompt.messages, options, splits, may_block, template)
        text, token_ids, splits = text_or_ids(prompt)
        if (suffix := suffix_of(prompt)) is not None and text is not None:
            return text, self._tokenizer.encode_infill(text, suffix)
        if token_ids is None:
            assert text is not None
            splits = self._splits_prompts if splits is None else splits
            encode = self._tokenizer.encode_as_text if splits else self._tokenizer.encode
            token_ids = encode(text, add_special_tokens)
        return text, token_ids


def _read_template(tokenizer: Tokenizer, source: str) -> ChatTemplate:
    """Raises InvalidRequestError: the text is no template."""
    try:
        return ChatTemplate(source, tokenizer.special_tokens)
    except ModelLoadError as error:
        raise InvalidRequestError(str(error), "chat_template") from None
