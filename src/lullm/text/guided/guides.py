"""GuideMaker: makes a checked `Guide` of `structured_outputs`, in the engine's input processor."""

import threading
from collections import OrderedDict

from lullm.errors import InvalidRequestError
from lullm.text.guided.grammar import grammar_of, joined_grammar
from lullm.text.guided.matchers import Matchers
from lullm.text.template.failure import WouldBlock
from lullm.text.tokenizer import Tokenizer
from lullm.types.guided.params import Guide, StructuredOutputsParams

_MAX_GUIDES = 64
_SHORT = 2000
"""Characters of a form that becomes a grammar in less than a millisecond."""


class GuideMaker:
    """The guides of one engine. Safe to call from several threads.

    Args:
        end_token_ids: the tokens that end a text.
        vocab_size: V, the width of the logits.
    """

    def __init__(self, tokenizer: Tokenizer, end_token_ids: tuple[int, ...], vocab_size: int) -> None:
        self._end_token_ids = end_token_ids
        self._matchers = Matchers(tokenizer.backend.to_str, vocab_size)
        self._lock = threading.Lock()
        self._made: OrderedDict[str, Guide] = OrderedDict()

    def make(
        self, params: StructuredOutputsParams | None, may_block: bool = True, outer: str | None = None
    ) -> Guide | None:
        """The guide; the same object for the same form. Compiling takes 0.1 ms to a second.

        Args:
            outer: a grammar of Lark for the whole output, in which `@form` is the grammar of `params`; None: no other.

        Raises:
            InvalidRequestError: the grammar is wrong or too large; the model has no end-of-sequence token.
            WouldBlock: the form is long or new, and `may_block` is False. A regex of 20 characters can take 0.3 s.
        """
        if params is None and outer is None:
            return None
        if not self._end_token_ids:
            raise InvalidRequestError(
                "structured_outputs needs an end-of-sequence token, and this model's folder names none",
                "structured_outputs",
            )
        if not may_block and params is not None and params.num_chars > _SHORT:
            raise WouldBlock
        grammar = outer if params is None else grammar_of(params)
        if params is not None and outer is not None:
            grammar = joined_grammar(outer, grammar_of(params))
        assert grammar is not None
        if not may_block and grammar not in self._made:
            raise WouldBlock
        if not self._lock.acquire(blocking=may_block):
            raise WouldBlock
        try:
            guide = self._made.pop(grammar, None)
            if guide is None:
                guide = Guide(grammar, self._end_token_ids)
                self._matchers.check(guide)
            self._made[grammar] = guide
            if len(self._made) > _MAX_GUIDES:
                self._made.popitem(last=False)
        finally:
            self._lock.release()
        return guide
