"""TextReader: the texts, conversations and pairs of prompts become token ids."""

import functools

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.engine.input.form import adds_special_tokens, suffix_of, text_or_ids
from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.text.chat_template import ChatTemplate
from lullm.text.pair import PairReader
from lullm.text.reply.replies import Replies
from lullm.text.tokenizer import Tokenizer
from lullm.types.request import Conversation, Input, TextPair


class TextReader:
    """Tokenizes for one engine. Safe to call from several threads.

    Args:
        replies: say what the template has to know of a conversation's tools and thoughts.
    """

    def __init__(self, config: ResolvedConfig, model: ModelConfig, tokenizer: Tokenizer, replies: Replies) -> None:
        self._tokenizer = tokenizer
        self._pairs = PairReader(tokenizer, model.pooler.pair_form if model.pooler else None)
        self._splits_conversations = config.split_special_tokens is not False
        self._splits_prompts = config.split_special_tokens is True
        self._replies = replies
        read = functools.partial(_read_template, tokenizer)  # not a method: a circle would outlive the engine
        self._other_template = functools.lru_cache(maxsize=4)(read)  # a batch compiles its template once

    def read(self, prompt: Input, add_special_tokens: bool, may_block: bool) -> tuple[str | None, list[int]]:
        """The prompt's text, if it has one, and its token ids.

        Args:
            add_special_tokens: those around a plain text that does not say itself whether it has them. A conversation
                has those of its template.

        Raises:
            InvalidRequestError: the prompt has another form, or the template refuses the messages.
            WouldBlock: a template must be rendered, and `may_block` is False.
        """
        if isinstance(prompt, TextPair):
            template = self._template(prompt)
            return self._pairs.encode(prompt, self._splits_prompts, self._splits_conversations, may_block, template)
        if isinstance(prompt, Conversation):
            return self._conversation(prompt, may_block)
        text, token_ids, splits = text_or_ids(prompt)
        adds = adds_special_tokens(prompt)
        if (suffix := suffix_of(prompt)) is not None and text is not None:
            return text, self._tokenizer.encode_infill(text, suffix)
        if token_ids is None:
            assert text is not None, "a prompt has a text, or token ids"
            splits = self._splits_prompts if splits is None else splits
            encode = self._tokenizer.encode_as_text if splits else self._tokenizer.encode
            token_ids = encode(text, add_special_tokens if adds is None else adds)
        return text, token_ids

    def _conversation(self, prompt: Conversation, may_block: bool) -> tuple[str, list[int]]:
        splits = self._splits_conversations if prompt.split_special_tokens is None else prompt.split_special_tokens
        options = self._replies.options(prompt)
        return self._tokenizer.encode_conversation(prompt.messages, options, splits, may_block, self._template(prompt))

    def _template(self, prompt: Conversation | TextPair) -> ChatTemplate | None:
        """The template that the prompt brings along. Raises InvalidRequestError: its text is none."""
        return None if prompt.template is None else self._other_template(prompt.template)


def _read_template(tokenizer: Tokenizer, source: str) -> ChatTemplate:
    """Raises InvalidRequestError: the text is no template."""
    try:
        return ChatTemplate(source, tokenizer.special_tokens)
    except ModelLoadError as error:
        raise InvalidRequestError(str(error), "chat_template") from None
