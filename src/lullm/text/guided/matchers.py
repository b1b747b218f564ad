"""Matchers: the tokens that a grammar allows after an output, by llguidance (docs: github.com/guidance-ai/llguidance).

The answer depends on the grammar and the output tokens alone. State between calls only saves time: each sequence has a
matcher, which is advanced by the new tokens, or rolled back to the common part. So a sequence may be preempted, forked,
swapped or moved to another worker without any message.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from lullm.errors import InvalidRequestError
from lullm.log import get_logger
from lullm.machine.processor import default_num_threads
from lullm.text.guided.grammar import reason_of
from lullm.types.guided.params import Guide
from lullm.types.packed import INT_BYTES, PackedInts, num_packed, pack_one, unpack

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

logger = get_logger(__name__)

_MAX_GRAMMARS = 64
_MAX_SEQUENCES = 1024
_IDLE_STEPS = 16
"""A sequence that so many steps did not have has ended, or was preempted and has many tokens to compute again."""
_MAX_LEXER_STATES = 20_000
"""1 to 2 kB each; the library's own limit is 250,000."""
_MAX_GRAMMAR_SIZE = 100_000
_MIN_PARALLEL = 1 << 18
"""Masks times tokens. Fewer are found faster than threads wake up."""
_HAS_LEFT = "doesn't satisfy the grammar"  # the library's words; each other error is one of size
_LENGTHS = (1, 2, 3, 4, 6, 8, 10, 13, 16, 30)
_SLICES = [*(rf'[^"\\\x00-\x1F\x7F]{{1,{most}}}' for most in _LENGTHS), r'[^"\\\x00-\x1F\x7F]+']
"""Groups of tokens that a mask takes as a whole where the rest of a string has room for them: by length, since strings
have bounds. With the library's own groups (10, 30, any) a mask of 150,000 tokens with room for 20 took 7 ms, so 0.03.
"""


class Guided(NamedTuple):
    """A sequence whose next token a grammar restricts."""

    seq_id: int
    guide: Guide
    output_token_ids: PackedInts


@dataclass(slots=True)
class _Place:
    """A matcher, the tokens that it has consumed, and the step that asked for it last."""

    guide: Guide
    matcher: "LLMatcher"
    token_ids: PackedInts = b""
    step: int = 0


def unpacked(bits: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Bits as `Matchers.allowed` gives them [..., W] -> [..., 32 * W]."""
    return np.unpackbits(bits.view(np.uint8), axis=-1, bitorder="little").view(np.bool_)


class Matchers:
    """The matchers of one engine or worker. Not for several threads at once.

    Args:
        tokenizer_json: gives the text of a tokenizer.json; called at the first use.
        vocab_size: V, the width of the logits.

    Attributes:
        step: the caller counts its steps here. Sequences that some steps did not have are forgotten: their matchers
            hold what was made of their grammars, half a megabyte of a large schema.
    """

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int) -> None:
        self.step = 0
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._num_ids = vocab_size
        self._tokenizers: dict[tuple[int, ...], LLTokenizer] = {}
        self._fresh: OrderedDict[Guide, LLMatcher] = OrderedDict()
        self._places: OrderedDict[int, _Place] = OrderedDict()
        self._executor: LLExecutor | None = None

    def check(self, guide: Guide) -> None:
        """Raises InvalidRequestError: the grammar is wrong or too large, with the library's reason."""
        matcher = self._fresh_matcher(guide)
        if not matcher.is_error():  # a grammar that is too large fails at its first mask or at its first token
            mask = matcher.compute_bitmask()
        error = matcher.get_error() or _error_of_first_token(matcher, mask)
        if error:
            self._fresh.pop(guide, None)
            reason = reason_of(error)
            if reason.startswith("NoExtension"):
                reason = "no text fits this grammar"
            raise InvalidRequestError(f"structured_outputs: {reason}", "structured_outputs")

    def allowed(self, sequences: Sequence[Guided]) -> npt.NDArray[np.int32]:
        """[len(sequences), W]: a bit for each token that may come next; only the end token's where a text is complete.
        None, where a grammar has become too large for the library.

        Token 32 * w + b has bit b of word w; there are V bits or more. A sequence may occur several times, with
        different tokens.
        """
        from llguidance import LLExecutor
        from llguidance.numpy import fill_next_token_bitmask_par

        matchers: list[tuple[LLMatcher, int]] = []
        seen: set[int] = set()
        for row, sequence in enumerate(sequences):
            place = self._place(sequence, is_again=sequence.seq_id in seen)
            seen.add(sequence.seq_id)
            matchers.append((place.matcher, row))
        bits = np.zeros((len(sequences), -(-self._num_ids // 32)), np.int32)
        if len(matchers) * self._num_ids < _MIN_PARALLEL:
            address, num_bytes = bits.ctypes.data, bits.strides[0]
            for matcher, row in matchers:
                matcher.unsafe_compute_mask_ptr(address + row * num_bytes, num_bytes)
            return _without_ends(matchers, bits)
        if self._executor is None:  # of all cores: the library's own leaves one of two idle
            self._executor = LLExecutor(num_threads=default_num_threads())
        fill_next_token_bitmask_par(self._executor, matchers, bits)
        return _without_ends(matchers, bits)

    def settle(self, sequence: Guided, token_id: int) -> int | None:
        """The next token if `token_id` was chosen without a mask: this token, or the only one that the mask allows.

        None: the mask is needed. Otherwise the token is expected as the sequence's next.
        """
        place = self._place(sequence, is_again=False)
        if not 0 <= token_id < self._num_ids:
            return None
        if forced := place.matcher.compute_ff_tokens():  # where a grammar allows a single text
            token_id = forced[0]
        if place.matcher.try_consume_tokens([token_id]) != 1:
            if place.matcher.is_error():  # the forced text is too long to be looked at; a mask may be found without it
                del self._places[sequence.seq_id]
            return None
        place.token_ids += pack_one(token_id)
        return token_id

    def _place(self, sequence: Guided, is_again: bool) -> _Place:
        """A matcher after the sequence's tokens; a second one if the sequence has one in this call already."""
        token_ids = sequence.output_token_ids
        place = None if is_again else self._places.pop(sequence.seq_id, None)
        if place is not None and place.token_ids == token_ids and place.guide == sequence.guide:
            self._keep(sequence.seq_id, place)
            return place
        if place is not None:
            num_common = _num_common(place.token_ids, token_ids)
            num_back = num_packed(place.token_ids) - num_common
            is_usable = place.guide == sequence.guide and not place.matcher.is_error()
            if not is_usable or (num_back and not place.matcher.rollback(num_back)):
                place = None
            else:
                place.token_ids = token_ids[: num_common * INT_BYTES]
        if place is None:
            place = _Place(sequence.guide, self._fresh_matcher(sequence.guide).deep_copy())
        new = unpack(token_ids[len(place.token_ids) :])
        if new and not place.matcher.consume_tokens(new):  # it allows only the end from now on
            logger.debug("sequence %d left its grammar: %s", sequence.seq_id, place.matcher.get_error())
        place.token_ids = token_ids
        if not is_again:
            self._keep(sequence.seq_id, place)
        return place

    def _keep(self, seq_id: int, place: _Place) -> None:
        """Keep a place, which is not kept yet, and forget the oldest ones."""
        place.step = self.step
        self._places[seq_id] = place
        while len(self._places) > _MAX_SEQUENCES or next(iter(self._places.values())).step < self.step - _IDLE_STEPS:
            self._places.popitem(last=False)

    def _fresh_matcher(self, guide: Guide) -> "LLMatcher":
        """A matcher at the grammar's start, to be copied."""
        from llguidance import LLMatcher

        matcher = self._fresh.pop(guide, None)
        if matcher is None:
            tokenizer = self._tokenizer(guide.end_token_ids)
            matcher = LLMatcher(tokenizer, guide.grammar, log_level=0, limits=_limits())
            while len(self._fresh) >= _MAX_GRAMMARS:
                self._fresh.popitem(last=False)
        self._fresh[guide] = matcher
        return matcher

    def _tokenizer(self, end_token_ids: tuple[int, ...]) -> "LLTokenizer":
        from llguidance import LLTokenizer

        if end_token_ids not in self._tokenizers:
            text = self._tokenizer_json()
            try:
                made = LLTokenizer(text, eos_token=list(end_token_ids), slices=[])
                size = max(made.vocab_size, self._vocab_size)
                made = LLTokenizer(text, n_vocab=size, eos_token=list(end_token_ids), slices=_SLICES)
            except (ValueError, RuntimeError) as error:
                raise InvalidRequestError(
                    f"structured_outputs: llguidance cannot read this model's tokenizer: {error}", "structured_outputs"
                ) from None
            self._num_ids = made.vocab_size
            self._tokenizers[end_token_ids] = made
        return self._tokenizers[end_token_ids]


def _error_of_first_token(matcher: "LLMatcher", mask: bytes) -> str:
    """The error behind the first token that a fresh matcher allows; empty: none."""
    trial = matcher.deep_copy()
    token_ids = trial.compute_ff_tokens() or np.flatnonzero(unpacked(np.frombuffer(mask, np.int32)))
    if not trial.is_error() and len(token_ids):
        trial.consume_token(int(token_ids[0]))
    return trial.get_error()


def _without_ends(matchers: Sequence[tuple["LLMatcher", int]], bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The masks without the end token that the library allows when it gives up: the text would seem complete.

    A text that has left its grammar (behind a wrong guess) may end.
    """
    for matcher, row in matchers:
        if matcher.is_error() and _HAS_LEFT not in matcher.get_error():
            bits[row] = 0
    return bits


def _num_common(one: PackedInts, other: PackedInts) -> int:
    """Length of the common prefix."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter // INT_BYTES
    return next(i for i, (a, b) in enumerate(zip(unpack(one), unpack(other), strict=False)) if a != b)


def _limits() -> "LLParserLimits":
    """Bounds of memory and time: with the library's own, `((a{100}){100}){100}` took a second."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_lexer_states=_MAX_LEXER_STATES,
        max_grammar_size=_MAX_GRAMMAR_SIZE,
        initial_lexer_fuel=300_000,
        step_lexer_fuel=50_000,
        verbose_errors=False,
    )
