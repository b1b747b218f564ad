"""Takes an encoder's rows out of a plan: what is left reads as a plan of texts in two cache groups.

The first places of a sequence hold the encoder's rows, in whole blocks (`Sequence.num_encoder_slots`). To the steps of
a model they are a cache group of their own: the text behind them begins at position 0, in the table of group 0 with the
other blocks; the table of group CROSS_GROUP has the first blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from lullm.types.packed import INT_BYTES
from lullm.types.step import Span, StepPlan
from lullm.types.vision.tile import TileRows
from lullm.units import round_up

CROSS_GROUP = 1
"""The group of the encoder's rows, to which all tokens of a sequence attend."""


@dataclass(frozen=True, slots=True)
class EncoderWrites:
    """Rows of an encoder whose keys and values a step writes. `slots`: `[P]` int64, of all of `rows` in order."""

    rows: Sequence[TileRows]
    slots: np.ndarray


NO_WRITES = EncoderWrites((), np.empty(0, np.int64))


def split_plan(plan: StepPlan, block_size: int) -> tuple[StepPlan, EncoderWrites]:
    """(the plan without the encoder's rows, what to write of them). A span of such rows only is left out."""
    spans: list[Span] = []
    rows: list[TileRows] = []
    slots: list[np.ndarray] = []
    for span in plan.spans:
        num_slots = round_up(span.num_encoder_rows, block_size)
        [ids] = span.block_ids
        cut = num_slots // block_size * INT_BYTES
        for shown in span.tiles:
            places = np.arange(span.start + shown.row, span.start + shown.row + shown.num_rows)
            block, offset = np.divmod(places, block_size)
            slots.append(np.frombuffer(ids, np.int32)[block].astype(np.int64) * block_size + offset)
            rows.append(shown)
        num_left_out = max(num_slots - span.start, 0)
        if num_left_out >= span.num_tokens:
            continue
        draws, pooled_rows = span.draws, span.pooled_rows
        if num_left_out:
            if pooled_rows is not None:
                pooled_rows = pooled_rows[0] - num_left_out, pooled_rows[1] - num_left_out
            draws = tuple(msgspec.structs.replace(draw, row=draw.row - num_left_out) for draw in draws)
        spans.append(
            msgspec.structs.replace(
                span,
                start=max(span.start - num_slots, 0),
                token_ids=span.token_ids[num_left_out * INT_BYTES :],
                block_ids=(ids[cut:], ids[:cut]),
                draws=draws,
                pooled_rows=pooled_rows,
                tiles=(),
                shift=0,
            )
        )
    of_all = np.concatenate(slots) if slots else np.empty(0, np.int64)
    return msgspec.structs.replace(plan, spans=spans), EncoderWrites(rows, of_all)
