"""ModelGuesses: guesses of a smaller model, the draft model, which runs in the worker before the model itself.

A plan only says where tokens are guessed (GUESSED_TOKEN), and which tokens the draft model has to see before. It keeps
its keys and values in the blocks of the model's own, so that prefixes, copies, swaps and sleeps carry both. Its counter
of seen tokens catches up as the model's does, but only when a guess is wanted: where guesses do not pay, it costs
nothing. A block that it has filled is marked (`BlockAllocator.is_drafted`), for other sequences with this prefix.

If all guesses were right, it has not seen the last of them: so it has one or two tokens to see before the next guess.
They are spans of one token, as a decode has, so that the step is replayed as it was recorded.
"""

from collections.abc import Sequence as Seq
from weakref import WeakKeyDictionary

import msgspec

from lullm.config.option.speculation import Speculation
from lullm.kv.block_space import BlockSpaceManager
from lullm.types.draw import Draw, DrawParams
from lullm.types.packed import pack
from lullm.types.sequence import Sequence
from lullm.types.step import GUESSED_TOKEN, Span, StepPlan, StepResult

_MOST_SINGLE = 2
"""Tokens that are spans of their own: more of them are computed faster as one span, though no recording has it."""


class _Seen:
    """The draft model's part of one sequence: its computed tokens, its marked blocks, and how it draws.

    `tail`: the block that holds the last of the tokens; a swap or a copy makes it another one.
    """

    __slots__ = ("end", "num_marked", "num_tokens", "params", "tail")

    def __init__(self, num_tokens: int, num_marked: int, params: DrawParams):
        self.num_tokens = num_tokens
        self.num_marked = num_marked
        self.params = params
        self.tail = -1
        self.end = 0  # of the sequence, when its tokens were last guessed


class ModelGuesses:
    """The guesses of a draft model for all sequences. Implements `Guesser`.

    Args:
        cache: the number of the cache group whose tables the draft model uses: it keeps all tokens.
        max_num_seqs, max_num_batched_tokens: most spans and tokens of the draft model in a step.
        max_model_len: the longest sequence that it sees.
    """

    is_active = True
    num_quiet_steps = 0

    def __init__(
        self,
        speculation: Speculation,
        block_space: BlockSpaceManager,
        cache: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
    ):
        self._most = speculation.num_speculative_tokens
        self._block_space = block_space
        self._cache = cache
        self._max_num_seqs = max_num_seqs
        self._max_num_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._seen: WeakKeyDictionary[Sequence, _Seen] = WeakKeyDictionary()
        self._spans: list[Span] = []
        self._room = 0

    def begin(self, seqs: Seq[Sequence]) -> None:
        """See `Guesser`."""
        self._spans, self._room = [], self._max_num_tokens

    def num_behind(self, seq: Sequence) -> int:
        """See `Guesser`."""
        seen = self._seen.get(seq)
        return len(seq) - (self._num_found(seq) if seen is None or self._has_moved(seq, seen) else seen.num_tokens)

    def propose(self, seq: Sequence, most: int) -> list[int]:
        """See `Guesser`. Empty, too, while the draft model has more tokens to see than a step has room for."""
        end = len(seq)
        most = min(most, self._most, self._max_model_len - end)
        if most <= 0 or self._room <= 0:
            return []
        seen = self._seen_of(seq)
        num_tokens = min(end - seen.num_tokens, self._room)
        is_single = num_tokens <= _MOST_SINGLE
        if len(self._spans) + (num_tokens if is_single else 1) > self._max_num_seqs:
            return []
        start, seen.num_tokens = seen.num_tokens, seen.num_tokens + num_tokens
        self._add_spans(seq, seen, start, is_single)
        self._room -= num_tokens
        self._mark(seq, seen)
        seen.end = end
        return [GUESSED_TOKEN] * most if seen.num_tokens == end else []

    def take_spans(self) -> list[Span]:
        """See `Guesser`."""
        return self._spans

    def learn(self, seq: Sequence, num: int, num_right: int) -> None:
        """See `Guesser`. The draft model has seen its own guesses but the last."""
        seen = self._seen[seq]
        seen.num_tokens = seen.end + min(num_right, num - 1)
        self._mark(seq, seen)

    def forget(self, seq: Sequence) -> None:
        """See `Guesser`."""
        self._seen.pop(seq, None)

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """See `Guesser`."""

    def _add_spans(self, seq: Sequence, seen: _Seen, start: int, is_single: bool) -> None:
        """Spans for the tokens from `start` on. A span at the sequence's end draws, and single ones always do: as
        decodes do."""
        end, length, table = seen.num_tokens, len(seq), (bytes(self._block_space.block_ids(seq)[self._cache]),)
        for first, last in [(i, i + 1) for i in range(start, end)] if is_single else [(start, end)]:
            draws: tuple[Draw, ...] = ()
            if is_single or last == length:
                draws = (Draw(seq.seq_id, last - first - 1, seen.params, max(last - seq.prompt_len, 0)),)
            self._spans.append(Span(seq.seq_id, first, pack(seq.token_ids[first:last]), table, draws))

    def _num_found(self, seq: Sequence) -> int:
        """The sequence's first tokens that the draft model has seen for it or for others; not the last, which draws."""
        num_blocks = self._block_space.num_drafted_blocks(seq, self._cache)
        return min(num_blocks * self._block_space.block_size, len(seq) - 1)

    def _seen_of(self, seq: Sequence) -> _Seen:
        seen = self._seen.get(seq)
        if seen is None or self._has_moved(seq, seen):
            assert seq.draw_params is not None, "it has tokens"
            params = msgspec.structs.replace(seq.draw_params, num_logprobs=None)
            num_tokens = self._num_found(seq)
            seen = self._seen[seq] = _Seen(num_tokens, num_tokens // self._block_space.block_size, params)
        return seen

    def _has_moved(self, seq: Sequence, seen: _Seen) -> bool:
        """Whether the last of the seen tokens has another block now, so that only marks say what was seen."""
        place = (seen.num_tokens - 1) // self._block_space.block_size
        return seen.num_tokens > 0 and self._block_space.block_ids(seq)[self._cache][place] != seen.tail

    def _mark(self, seq: Sequence, seen: _Seen) -> None:
        """Mark the blocks that the draft model has filled."""
        if seen.num_tokens:
            place = (seen.num_tokens - 1) // self._block_space.block_size
            seen.tail = self._block_space.block_ids(seq)[self._cache][place]
        num_full = seen.num_tokens // self._block_space.block_size
        if num_full > seen.num_marked:
            self._block_space.mark_drafted(seq, self._cache, seen.num_marked, num_full)
            seen.num_marked = num_full
