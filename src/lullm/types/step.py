"""One step as plain data: the scheduler's `StepPlan` and the workers' `StepResult`.

A plan is complete: a worker needs nothing of earlier plans to run it, except rows of pictures and given ones (`tiles`),
so preemption, forks and a restarted worker need no messages of their own. A plan is plain data: it shares nothing with
the scheduler's state, and `lullm.types.step_codec` turns it into bytes and back.
"""

from typing import Protocol, TypeVar

import msgspec

from lullm.types.draw import Draw
from lullm.types.packed import PackedInts, num_packed
from lullm.types.pooling.rows import PackedFloats, RowRange
from lullm.types.vision.given import GivenRows
from lullm.types.vision.tile import Tile, TileRows

T_co = TypeVar("T_co", covariant=True)

BlockPair = tuple[int, int]
"""(source block id, destination block id)"""

RankedLogprob = tuple[int, float, int]
"""(token id, log-probability, rank); rank 1 is the most likely token."""

TokenLogprobs = tuple[RankedLogprob, ...]
"""One position: the chosen token first, then the most likely ones in order (the chosen is not repeated)."""

AdapterMove = tuple[int, int]
"""(place, number of an adapter that workers have read)"""

NO_PLACE = -1

# Structs of msgspec, not dataclasses: a frozen dataclass of this size takes 0.9 us to build, a struct 0.1 us.


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive tokens of one sequence whose KV the step computes: a whole prompt, a chunk of it, or one token.

    `token_ids` are at positions `start`, `start` + 1, ...; the last one may be PENDING_TOKEN. `block_ids` has one entry
    per KV cache group: the sequence's blocks in order, which cover all positions up to the span's end.

    `draws` is empty while the sequence has more tokens to compute. It has several entries, all of one row, when
    sequences are about to be forked. A guess is a span of its own behind those of its sequence, of one token, which may
    be GUESSED_TOKEN. `prompt_targets`: for
    `prompt_logprobs`, the next token of each of the first rows; empty otherwise. `pooled_rows`: rows to pool for the
    caller: their hidden states, or the results of the model's head for them; of a model with an encoder, the weights of
    their attention to its rows, by its `alignment_heads`. `sums_pooled`: only their sum is wanted.
    `adapter_place`: the place of the adapter that all tokens are computed with; NO_PLACE: none. `tiles`: rows of
    pictures in place of tokens. `shift`: what the rotation adds to the positions of tokens, up to the end of the first
    tile (`lullm.types.vision`).
    `num_encoder_rows`: rows of an encoder that stand in the sequence's first blocks (`Sequence.num_encoder_slots`), and
    to which its tokens attend, too; `tiles` are then what the encoder reads.
    `second_text`: the row where the second text of a pair begins, for models that tell them apart.
    """

    seq_id: int
    start: int
    token_ids: PackedInts
    block_ids: tuple[PackedInts, ...]
    draws: tuple[Draw, ...] = ()
    prompt_targets: PackedInts = b""
    num_prompt_logprobs: int = 0
    pooled_rows: RowRange | None = None
    adapter_place: int = NO_PLACE
    tiles: tuple[TileRows, ...] = ()
    shift: int = 0
    num_encoder_rows: int = 0
    second_text: int | None = None
    sums_pooled: bool = True

    @property
    def num_tokens(self) -> int:
        return num_packed(self.token_ids)

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + num_packed(self.token_ids)


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """The work of one step, in the order: adapters into their places, swap out, swap in, copy, tiles, spans.

    `draft_spans`: what the draft model computes before the others, in the same blocks: tokens that it has not seen. It
    then guesses the GUESSED_TOKENs of `spans`, by the draws of the spans before them. The last draft span of a sequence
    has a draw if the sequence has guesses.

    A worker keeps the rows of `tiles` for later spans until a plan has their digest in `tiles_to_drop`, or until the
    engine sleeps.
    """

    spans: list[Span]
    blocks_to_swap_out: list[BlockPair] = []
    blocks_to_swap_in: list[BlockPair] = []
    blocks_to_copy: list[BlockPair] = []
    adapters_to_place: list[AdapterMove] = []
    draft_spans: list[Span] = []
    tiles: list[Tile | GivenRows] = []
    tiles_to_drop: list[bytes] = []

    @property
    def num_tokens(self) -> int:
        """Tokens that run through the model."""
        return sum(span.num_tokens for span in self.spans)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, not even a block or an adapter to move."""
        moves = self.blocks_to_swap_out or self.blocks_to_swap_in or self.blocks_to_copy
        return not (self.spans or moves or self.adapters_to_place)


PENDING_TOKEN = -2
"""The place of a token that an earlier step draws for the same sequence, in a plan made before that step's result."""

GUESSED_TOKEN = -3
"""The place of a token that the draft model guesses in this step, before the step computes it."""

NO_TOKEN = -1
"""`DrawnToken.token_id` when no token can be drawn: the model gave NaN or +inf, or -inf for every allowed token."""


class DrawnToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of one `Draw`; `token_id` may be NO_TOKEN. `logprobs` is empty unless the parameters ask for it."""

    seq_id: int
    token_id: int
    logprobs: TokenLogprobs = ()


class PooledPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`Model.pool` of the pooled rows of one span: their sum, or one row after the other. `num_rows`: their number."""

    seq_id: int
    num_rows: int
    values: PackedFloats


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """The draws of all spans in plan order; for each span with `prompt_targets`, by seq_id, one entry per target.

    `pooled`: one part for each span with `pooled_rows`. `swap_s` and `compute_s`: seconds of the block
    moves between the pools, and of all the rest. `guesses`: the tokens of the GUESSED_TOKENs, in plan order; `draft_s`:
    seconds that the draft model took.
    """

    tokens: list[DrawnToken]
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    swap_s: float = 0.0
    compute_s: float = 0.0
    pooled: list[PooledPart] = []
    guesses: PackedInts = b""
    draft_s: float = 0.0


class Running(Protocol[T_co]):
    """A piece of work that has been started."""

    def result(self) -> T_co:
        """The result of the work. Blocks until it is done; raises its errors. Call it once, in the order of starts."""
        ...
