"""From a plan to numbers: all spans of a step become one ragged batch, in arrays that are reused."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from lullm.step.encoder.split import CROSS_GROUP
from lullm.step.limits import StepLimits
from lullm.step.pooling import PooledSpan
from lullm.step.vision.planes import plane_positions
from lullm.types.draw import Draw
from lullm.types.packed import PackedInts, num_packed
from lullm.types.step import Span, StepPlan
from lullm.types.vision.tile import TileRows


@dataclass(frozen=True, slots=True)
class MutualPlace:
    """Rows `first` .. `first` + `num_rows` - 1 of a batch, of span number `span`, that see each other: all tokens of
    their sequence before the position `end`.
    """

    span: int
    first: int
    num_rows: int
    end: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input on the host, T tokens of S spans, for a model with G KV cache groups.

    `drawn_rows` are the distinct rows with draws, and `draw_index` is the index into them of each draw (None: one draw
    per row, in order). `prompt_spans` are the spans that want prompt log-probabilities, with their first row.
    `tiles`: rows of pictures, or given ones, with the first row of their span. `planes`: positions in the place of
    `positions`, if the step shows pictures that have planes of them. `adapters`: by token, the place of its adapter;
    None: the engine has none. `encoder_lens`: rows of an encoder that the tokens of a span attend to; None: there is no
    encoder. `segments`: by token, 1 in the second text of a pair; None: no text is. `mutual`: rows of pictures that see
    rows behind them.
    """

    token_ids: np.ndarray  # [T] int64
    positions: np.ndarray  # [T] int64, by which heads rotate
    slot_mapping: np.ndarray  # [G, T] int64, where each group's keys and values are written; -1: a group of states
    block_tables: np.ndarray  # [G, S, M] int64, numbers of blocks in the caches of the group's layers
    query_lens: list[int]  # of S spans
    context_lens: np.ndarray  # [S] int64, tokens in the cache once this step's are written
    drawn_rows: list[int]
    draws: list[Draw]
    draw_index: list[int] | None
    prompt_spans: list[tuple[int, Span]]
    pooled_spans: list[PooledSpan]
    tiles: list[tuple[int, TileRows]]
    planes: np.ndarray | None = None  # [3, T] int64
    adapters: np.ndarray | None = None  # [T] int64
    encoder_lens: np.ndarray | None = None  # [S] int64
    segments: np.ndarray | None = None  # [T] int64
    mutual: Sequence[MutualPlace] = ()

    @property
    def wanted_rows(self) -> list[int]:
        """The rows whose hidden states are read after the model: `drawn_rows`, then those that are pooled."""
        if not self.pooled_spans:
            return self.drawn_rows
        return self.drawn_rows + [row for span in self.pooled_spans for row in range(*span.rows)]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_spans(self) -> int:
        return len(self.query_lens)

    @property
    def is_decode(self) -> bool:
        """One token and one draw per span, and nothing else."""
        num_spans = len(self.query_lens)
        has_one_each = len(self.token_ids) == num_spans and len(self.draws) == num_spans
        return has_one_each and self.draw_index is None and not (self.prompt_spans or self.pooled_spans or self.tiles)


class BatchBuilder:
    """Builds batches into arrays of the largest size, so that a step allocates almost nothing.

    A batch is valid until the next one is built.
    """

    def __init__(self, limits: StepLimits):
        self._block_size = limits.block_size
        self._table_width = limits.table_width
        self._has_adapters, self._tells_pairs = limits.has_adapters, limits.tells_pairs
        self._token_groups = [group for group in range(len(limits.windows)) if group not in limits.state_groups]
        self._has_encoder = limits.max_encoder_rows > 0
        if self._has_encoder:
            self._token_groups.remove(CROSS_GROUP)
        num_tokens, num_groups = limits.max_num_batched_tokens, len(limits.windows)
        self._token_ids = np.zeros(num_tokens, np.int64)
        self._positions = np.zeros(num_tokens, np.int64)
        self._slot_mapping = np.full((num_groups, num_tokens), -1, np.int64)
        self._rows = np.arange(num_tokens, dtype=np.int64)
        max_blocks = limits.table_width(limits.max_model_len)
        self._block_tables = np.zeros((num_groups, limits.max_num_seqs, max_blocks), np.int64)
        self._table_of_group = list(self._block_tables)
        self._num_shares = limits.num_shares or (1,) * num_groups
        # The blocks in the rows now: most sequences keep their row and their blocks from one step to the next.
        self._ids_of_group: list[list[PackedInts]] = [[b""] * limits.max_num_seqs for _ in limits.windows]

    def build(self, plan: StepPlan) -> Batch:
        """The batch of a plan with at least one span. The draws of a span stand in the order of their rows."""
        spans = plan.spans
        token_ids = np.frombuffer(b"".join([span.token_ids for span in spans]), np.int32)
        num_tokens, query_lens = len(token_ids), [num_packed(span.token_ids) for span in spans]
        self._token_ids[:num_tokens] = token_ids
        ends = [span.start + length for span, length in zip(spans, query_lens, strict=True)]
        context_lens = np.array(ends)
        for place, span in enumerate(spans):
            self._write_tables(place, span.block_ids)
        self._place(query_lens, context_lens, num_tokens)
        positions = self._positions[:num_tokens]
        shifts = [span.shift for span in spans]
        if any(shifts):
            positions += np.repeat(shifts, query_lens)
        placed = list(zip(accumulate(query_lens[:-1], initial=0), spans, strict=True))
        drawn_rows, draws, draw_index = _draws(placed)
        tiles = [(first_row, rows) for first_row, span in placed for rows in span.tiles]
        return Batch(
            token_ids=self._token_ids[:num_tokens],
            positions=positions,
            slot_mapping=self._slot_mapping[:, :num_tokens],
            block_tables=self._block_tables[:, : len(spans), : self._table_width(max(ends))],
            query_lens=query_lens,
            context_lens=context_lens,
            drawn_rows=drawn_rows,
            draws=draws,
            draw_index=None if len(draws) == len(drawn_rows) else draw_index,
            prompt_spans=[(first_row, span) for first_row, span in placed if span.prompt_targets],
            pooled_spans=_pooled(placed),
            adapters=_adapters(plan, query_lens) if self._has_adapters else None,
            tiles=tiles,
            planes=_planes(positions, placed) if tiles else None,
            encoder_lens=np.array([span.num_encoder_rows for span in spans]) if self._has_encoder else None,
            segments=_segments(plan, query_lens) if self._tells_pairs else None,
            mutual=_mutual(placed) if tiles else (),
        )

    def _write_tables(self, place: int, block_ids: Sequence[PackedInts]) -> None:
        """Write a span's blocks into its row of each group's table, where they have changed."""
        groups = zip(self._table_of_group, self._ids_of_group, self._num_shares, block_ids, strict=True)
        for table, last_ids, num_shares, ids in groups:
            if last_ids[place] != ids:
                entries = table[place, : num_packed(ids)]
                entries[:] = np.frombuffer(ids, np.int32)
                if num_shares > 1:
                    entries *= num_shares
                last_ids[place] = ids

    def _place(self, query_lens: list[int], context_lens: np.ndarray, num_tokens: int) -> None:
        """Fill positions and slots of all tokens at once: position = context_len - rows left in the span."""
        positions = self._positions[:num_tokens]
        # one token each; a call of numpy costs 3 us with the cold caches after a step
        if num_tokens == len(query_lens):
            np.subtract(context_lens, 1, out=positions)
            span_of_token = self._rows[:num_tokens]
        else:
            span_ends = np.cumsum(query_lens)
            positions[:] = self._rows[:num_tokens]
            positions += np.repeat(context_lens - span_ends, query_lens)
            span_of_token = np.repeat(self._rows[: len(query_lens)], query_lens)
        block, offset = np.divmod(positions, self._block_size)
        for group in self._token_groups:
            table, slots = self._table_of_group[group], self._slot_mapping[group]
            slots[:num_tokens] = table[span_of_token, block] * self._block_size + offset


_PlacedSpans = Sequence[tuple[int, Span]]
"""The spans of a batch, each with its first row."""


def _draws(placed: _PlacedSpans) -> tuple[list[int], list[Draw], list[int]]:
    """See `Batch`: `drawn_rows`, `draws` and `draw_index`."""
    drawn_rows: list[int] = []
    draws: list[Draw] = []
    draw_index: list[int] = []
    for first_row, span in placed:
        for draw in span.draws:
            row = first_row + draw.row
            if not drawn_rows or drawn_rows[-1] != row:
                drawn_rows.append(row)
            draw_index.append(len(drawn_rows) - 1)
            draws.append(draw)
    return drawn_rows, draws, draw_index


def _pooled(placed: _PlacedSpans) -> list[PooledSpan]:
    return [
        PooledSpan(span.seq_id, (first_row + span.pooled_rows[0], first_row + span.pooled_rows[1]), span.sums_pooled)
        for first_row, span in placed
        if span.pooled_rows is not None
    ]


def _planes(positions: np.ndarray, placed: _PlacedSpans) -> np.ndarray | None:
    """Planes of positions; None: no picture has them."""
    shown = [
        (first_row, first_row + span.num_tokens, rows)
        for first_row, span in placed
        for rows in span.tiles
        if rows.geometry.num_columns
    ]
    return plane_positions(positions, shown) if shown else None


def _segments(plan: StepPlan, query_lens: list[int]) -> np.ndarray | None:
    if all(span.second_text is None for span in plan.spans):
        return None
    pairs = zip(plan.spans, query_lens, strict=True)
    firsts = [length if span.second_text is None else span.second_text for span, length in pairs]
    seconds = [length - first for first, length in zip(firsts, query_lens, strict=True)]
    lens = np.array([firsts, seconds]).T.ravel()
    return np.repeat(np.tile(np.array([0, 1], np.int64), len(query_lens)), lens)


def _mutual(placed: _PlacedSpans) -> list[MutualPlace]:
    """Rows that see each other. The last row of a picture sees none behind it."""
    return [
        MutualPlace(number, first_row + rows.row, rows.num_rows, span.start + rows.row + rows.num_rows)
        for number, (first_row, span) in enumerate(placed)
        for rows in span.tiles
        if rows.geometry.is_mutual and rows.num_rows > 1
    ]


def _adapters(plan: StepPlan, query_lens: list[int]) -> np.ndarray:
    return np.repeat(np.array([span.adapter_place for span in plan.spans], np.int64), query_lens)
