"""Pairs: how a cross-encoder reads a query and a document as one prompt."""

import re

from lullm.config.pooling.pooler import PairForm
from lullm.errors import InvalidRequestError
from lullm.text.chat_template import ChatTemplate
from lullm.text.tokenizer import Tokenizer
from lullm.types.request import TextPair

_QWEN3_RERANKER = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ instruction }}
<Query>: {{ messages[0].content }}
<Document>: {{ messages[1].content }}<|im_end|>
<|im_start|>assistant
<think>

</think>


"""
"""The text that the model was trained with (https://arxiv.org/abs/2506.05176). Jinja drops the last newline."""
_QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_ROLES = tuple(re.compile(rf"""["']{role}["']""") for role in ("query", "document"))


def has_pair_roles(template: ChatTemplate | None) -> bool:
    """Whether a chat template reads messages of the roles 'query' and 'document', as sentence-transformers sends."""
    source = "" if template is None else template.sources["default"]
    return all(role.search(source) for role in _ROLES)


class PairReader:
    """Encodes pairs for one model. Several threads may share one.

    Args:
        form: None: the model reads no pairs.
    """

    def __init__(self, tokenizer: Tokenizer, form: PairForm | None):
        self._tokenizer = tokenizer
        self._form = form
        self._template: ChatTemplate | None = None
        if form == "qwen3_reranker":
            self._template = ChatTemplate({"default": _QWEN3_RERANKER}, {})

    def encode(
        self,
        pair: TextPair,
        splits_text: bool,
        splits_messages: bool,
        may_block: bool,
        template: ChatTemplate | None = None,
    ) -> tuple[str, list[int]]:
        """The prompt's text and its ids.

        Args:
            splits_text: special tokens in texts are plain text, where the texts are joined directly.
            splits_messages: the same where a template reads them.
            may_block: see `Tokenizer.encode_conversation`.
            template: of the pair, read.

        Raises:
            InvalidRequestError: an argument is not text, or the model reads no pairs or no instruction.
        """
        for name in ("query", "document"):
            if not isinstance(getattr(pair, name), str):
                raise InvalidRequestError(f"a {name} must be a string, not {type(getattr(pair, name)).__name__}", name)
        if self._form is None:
            raise InvalidRequestError("this model reads no pairs of texts", "query")
        if self._form == "joined" and template is None:
            if pair.instruction is not None:
                raise InvalidRequestError(
                    "this model reads a pair as one text behind the other; write the instruction into the query",
                    "instruction",
                )
            encode = self._tokenizer.encode_as_text if splits_text else self._tokenizer.encode
            text = pair.query + pair.document
            return text, encode(text)
        messages = [{"role": "query", "content": pair.query}, {"role": "document", "content": pair.document}]
        options: dict[str, str] = {}
        if self._form == "qwen3_reranker" and template is None:
            options["instruction"] = pair.instruction or _QWEN3_INSTRUCTION
        elif pair.instruction is not None:
            messages.insert(0, {"role": "system", "content": pair.instruction})
        return self._tokenizer.encode_conversation(
            messages, options, splits_messages, may_block, template or self._template
        )
