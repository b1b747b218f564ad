"""Tokenizer: text <-> token ids, on the `tokenizers` library, under the names that scripts know from transformers."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer as Backend

from lullm.config.gguf.file import is_gguf
from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.log import get_logger
from lullm.text.chat_template import ChatTemplate, Message
from lullm.text.template.infill import Infill, find_infill
from lullm.text.template.open_end import cut_at, take_open_end
from lullm.text.token_bytes import TokenBytes
from lullm.text.verbatim import Verbatim
from lullm.text.vocabulary.folder import read_chat_template, read_tokenizer, reraise_foreign
from lullm.text.vocabulary.gguf import read_tokenizer_gguf

logger = get_logger(__name__)

_SOME_TEXT = "a"


class Encoding(dict[str, list[Any]]):
    """What `Tokenizer.__call__` gives; its entries are attributes, too, as in transformers."""

    @property
    def input_ids(self) -> list[Any]:
        return self["input_ids"]

    @property
    def attention_mask(self) -> list[Any]:
        return self["attention_mask"]


class Tokenizer:
    """Text <-> token ids. Nothing changes after construction, so several threads may share one.

    Attributes:
        backend: the library's tokenizer; without truncation and padding.
        vocab_size: the largest token id + 1. A model's own `vocab_size` may be larger (padding of the matrix).
        bos_token, eos_token, pad_token, unk_token, and the same with `_id`: None where the model names none.
        special_tokens: name -> text (`{"eos_token": "</s>"}`), as chat templates use them.
        special_token_ids: marks (`</s>`, `<|im_end|>`, ...) that are no text; `skip_special_tokens` drops them.
        chat_template: None where the folder has none.
        token_bytes: each token's bytes.
        verbatim: special tokens that a caller spells.
    """

    def __init__(
        self, backend: Backend, special_tokens: dict[str, str] | None = None, chat_template: ChatTemplate | None = None
    ):
        """Takes ownership of `backend` and turns its truncation and padding off.

        Raises:
            ModelLoadError: an empty vocabulary, or a decoder that cannot be streamed.
        """
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        self.token_bytes = TokenBytes(backend)
        self.verbatim = Verbatim(backend)
        ids = backend.get_vocab(with_added_tokens=True).values()
        if not ids:
            raise ModelLoadError("tokenizer.json: the vocabulary is empty")
        self.vocab_size = max(ids) + 1
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.bos_token, self.bos_token_id = self._named_token("bos_token")
        self.eos_token, self.eos_token_id = self._named_token("eos_token")
        self.pad_token, self.pad_token_id = self._named_token("pad_token")
        self.unk_token, self.unk_token_id = self._named_token("unk_token")
        self._texts: dict[int, str] = {}

    @classmethod
    def from_folder(cls, folder: Path, chat_template: str | None = None) -> "Tokenizer":
        """Read the tokenizer of a model folder, or of a GGUF file.

        Blocks on the disk; tenths of a second for a large vocabulary. `chat_template`: a file or a template, instead of
        the folder's.

        Raises:
            ModelLoadError: a file is missing, damaged, or contradicts another.
        """
        read = read_tokenizer_gguf if is_gguf(folder) else read_tokenizer
        backend, special_tokens, sources = read(folder)
        if chat_template is not None:
            sources = {"default": read_chat_template(chat_template)}
        template = ChatTemplate(sources, special_tokens) if sources else None
        if template is not None:
            template.try_out()
        return cls(backend, special_tokens, template)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Blocks for about a second per 2 MB, with the interpreter lock released.

        Raises:
            InvalidRequestError: not a string, one with lone surrogates, or one that the vocabulary cannot spell.
        """
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of each text; the library spreads them over the cores. Raises as `encode` does."""
        return _encode(self.backend, texts, add_special_tokens)

    def encode_as_text(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, in which special tokens are text like any other. Raises as `encode` does.

        transformers calls it `split_special_tokens`. `add_special_tokens`: around the text, as `encode` adds them.
        """
        ids = self.verbatim.original_ids(_encode(self.verbatim.text_backend, [text], False)[0])
        if add_special_tokens:
            before, after = self._around
            ids = [*before, *ids, *after]
        return ids

    def encode_infill(self, prefix: str, suffix: str) -> list[int]:
        """Token ids that ask for the middle between two texts. Raises InvalidRequestError: the model has no form."""
        before, _ = self._around
        parts = (self.encode_as_text(part, add_special_tokens=False) for part in (prefix, suffix))
        return self.infill().joined(before, *parts)

    def infill(self) -> Infill:
        """The model's infill form. Raises InvalidRequestError: it has none."""
        return find_infill(self.backend.token_to_id)

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """Token ids of a rendered text, in which marked special tokens (`Verbatim`) are text. Raises as `encode`."""
        _check_text(text)
        renamed = self.verbatim.renamed(text, mark)
        return self.verbatim.original_ids(_encode(self.verbatim.text_backend, [renamed], False)[0])

    def encode_conversation(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        split_special_tokens: bool = True,
        may_block: bool = True,
        template: ChatTemplate | None = None,
    ) -> tuple[str, list[int]]:
        """The text and the ids of messages, by the chat template.

        Args:
            options: of `ChatTemplate.render`; with `continue_final_message` the text ends within the last message,
                which the model continues.
            split_special_tokens: special tokens in messages and options are plain text.
            may_block: wait for another process, if the template needs it.
            template: text to use in place of the model's.

        Raises:
            InvalidRequestError: there is no template, or it refuses the messages.
            WouldBlock: it needs the other process, and `may_block` is False.
        """
        template = template or self.chat_template
        if template is None:
            raise InvalidRequestError(
                "this model has no chat template; give it a plain prompt (generate, /v1/completions, `lullm run`)",
                "messages",
                "no_chat_template",
            )
        variables = template.variables(messages, options)
        tag = take_open_end(variables)
        quoted = self.verbatim.quote(variables, template.sources.values()) if split_special_tokens else None
        text = template.render_variables(variables if quoted is None else quoted.variables, may_block)
        text = text if tag is None else cut_at(text, tag)
        if quoted is None:
            return text, self.encode(text, add_special_tokens=False)
        return self.verbatim.shown(text, quoted.mark), self.encode_marked(text, quoted.mark)

    def apply_chat_template(
        self,
        conversation: Sequence[Message] | Sequence[Sequence[Message]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        split_special_tokens: bool = True,
        **kwargs: Any,
    ) -> str | list[int] | list[str] | list[list[int]]:
        """The ids of a conversation, or without `tokenize` its text, with the arguments of transformers.

        Of several conversations, a list of these.

        As there, the text does not keep the effect of `split_special_tokens`; so generate from the ids, or with
        `LLM.chat`. `kwargs` are variables of the template. Raises as `encode_conversation` does.
        """
        options = {"tools": tools, "add_generation_prompt": add_generation_prompt, **kwargs}
        if documents is not None:
            options["documents"] = list(documents)
        if conversation and isinstance(conversation[0], (list, tuple)):
            conversations = cast(Sequence[Sequence[Message]], conversation)
            several = [self.encode_conversation(each, options, split_special_tokens) for each in conversations]
            return [ids for _, ids in several] if tokenize else [text for text, _ in several]
        messages = cast(Sequence[Message], conversation)
        text, token_ids = self.encode_conversation(messages, options, split_special_tokens)
        return token_ids if tokenize else text

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> "Encoding":
        """`input_ids` and `attention_mask` of a text, or a list of each for several. Raises as `encode` does."""
        if isinstance(text, str):
            token_ids = self.encode(text, add_special_tokens)
            return Encoding(input_ids=token_ids, attention_mask=[1] * len(token_ids))
        ids = self.encode_batch(text, add_special_tokens)
        return Encoding(input_ids=ids, attention_mask=[[1] * len(one) for one in ids])

    def __len__(self) -> int:
        """The number of tokens, added ones included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def get_vocab(self) -> dict[str, int]:
        """Token, as the vocabulary spells it -> id."""
        return dict(self.backend.get_vocab(with_added_tokens=True))

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | None | list[str | None]:
        """The tokens as the vocabulary spells them; None for an id without one. Raises InvalidRequestError: no id."""
        if isinstance(ids, int):
            return self.token_bytes.token(ids)
        return [self.token_bytes.token(token_id) for token_id in ids]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | None | list[int | None]:
        """The ids of tokens as the vocabulary spells them; the unknown token's, or None, for others."""
        if isinstance(tokens, str):
            token_id: int | None = self.backend.token_to_id(tokens)
            return self.unk_token_id if token_id is None else token_id
        return [self.convert_tokens_to_ids(token) for token in tokens]  # type: ignore[misc]

    @functools.cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The special tokens that `encode` puts before and behind a text."""
        bare, whole = (self.encode(_SOME_TEXT, add_special_tokens=added) for added in (False, True))
        start = next((n for n in range(len(whole)) if whole[n : n + len(bare)] == bare), len(whole))
        return whole[:start], whole[start + len(bare) :]

    @functools.cached_property
    def around_pair(self) -> tuple[list[int], list[int], list[int]]:
        """The special tokens that the vocabulary's rules put before, between and behind two texts."""
        bare = self.encode(_SOME_TEXT, add_special_tokens=False)
        [encoding] = self.backend.encode_batch_fast([(_SOME_TEXT, _SOME_TEXT)], add_special_tokens=True)
        whole, size = encoding.ids, len(bare)
        starts = [n for n in range(len(whole) - size + 1) if whole[n : n + size] == bare]
        if len(starts) < 2:  # rules that change the texts, too
            return [], [], []
        first, second = starts[0], starts[-1]
        return whole[:first], whole[first + size : second], whole[second + size :]

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens that `encode` puts before and behind a text."""
        return self._around

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; ids without a token add nothing.

        Raises:
            InvalidRequestError: an item of `ids` cannot be an id.
        """
        try:
            return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError):
            raise InvalidRequestError("token ids must be integers from 0 to 2**32 - 1") from None

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        """`decode` of each, under transformers' name."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def decode_token(self, token_id: int) -> str:
        """One token's text for log-probabilities: with its leading space, and U+FFFD for an incomplete character."""
        text = self._texts.get(token_id)
        if text is None:
            text = self.token_bytes.inner(token_id).decode(errors="replace")
            if text:
                self._texts[token_id] = text
        return text

    def _named_token(self, name: str) -> tuple[str | None, int | None]:
        token = self.special_tokens.get(name)
        if token is None:
            return None, None
        token_id: int | None = self.backend.token_to_id(token)
        if token_id is None:
            logger.warning("the tokenizer names %r as its %s but has no such token", token, name)
        return token, token_id


def _encode(backend: Backend, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
    for text in texts:
        _check_text(text)
    # Not `backend.encode`: it holds the interpreter lock, and a long prompt would stall the other threads.
    try:
        encodings = backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
    except BaseException as error:  # such as a character that the vocabulary lacks
        reraise_foreign(error)
        raise InvalidRequestError(f"the tokenizer cannot encode the text: {error}") from None
    return [encoding.ids for encoding in encodings]


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise InvalidRequestError(f"a text to encode must be a string, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text is not valid Unicode: a lone surrogate at character {error.start}"
        ) from None
