"""Whisper's rules for timestamps among an output's tokens (`TimestampRules`)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lullm.sampling.penalties import on_device, output_ids
from lullm.types.draw import Draw
from lullm.types.guided.rules import TimestampRules, TokenRules


def apply_timestamps_(logits: Tensor, draws: Sequence[Draw]) -> None:
    """Leave the tokens that the rules allow, in place on logits [N, V]. Does not synchronise.

    The tokens that the model's files suppress go first, since timestamps are compared with the best of the others. A
    draw that would have no token left keeps its logits.
    """
    timed = [(row, draw) for row, draw in enumerate(draws) if draw.params.edits and draw.params.edits.rules.timestamps]
    if not timed:
        return
    vocab_size = logits.shape[1]
    rows = on_device(np.array([row for row, _ in timed]), logits)
    kept = logits[rows]
    part = kept.clone()  # [R, V]
    for place, (_, draw) in enumerate(timed):
        assert draw.params.edits is not None
        _forbid_(part[place], draw, draw.params.edits.rules, vocab_size)
    first = [draw.params.edits.rules.timestamps.first_id for _, draw in timed]  # type: ignore[union-attr]
    assert len(set(first)) == 1, "all draws are of one model"
    text, times = part[:, : first[0]], part[:, first[0] :]
    # Both sums are over the same probabilities, so logits do.
    text.masked_fill_((times.logsumexp(-1) > text.amax(-1)).unsqueeze(1), -torch.inf)
    logits[rows] = torch.where(part.isneginf().all(-1, keepdim=True), kept, part)


def _forbid_(logits: Tensor, draw: Draw, rules: TokenRules, vocab_size: int) -> None:
    """Forbid what cannot come now, in place on logits [V]."""
    assert rules.timestamps is not None
    suppressed = rules.suppressed_ids + (rules.begin_suppressed_ids if draw.output_len == 0 else ())
    ids = [token_id for token_id in suppressed if 0 <= token_id < vocab_size]
    if ids:
        logits[on_device(np.array(ids), logits)] = -torch.inf
    for first, end in forbidden_ranges(rules.timestamps, output_ids(draw).tolist()):
        logits[first:end] = -torch.inf


def forbidden_ranges(rules: TimestampRules, token_ids: Sequence[int]) -> list[tuple[int, int | None]]:
    """The ids (from, to; None: to the last) that cannot follow these tokens of an output. Host only."""
    begin = rules.first_id
    if not token_ids:  # an output begins with a time
        late = [] if rules.max_initial is None else [(begin + rules.max_initial + 1, None)]
        return [(0, begin), *late]
    found: list[tuple[int, int | None]] = [(begin - 1, begin)]  # <|notimestamps|>
    after_time = token_ids[-1] >= begin
    after_two = after_time and (len(token_ids) < 2 or token_ids[-2] >= begin)
    if after_two:
        found.append((begin, None))  # a segment has begun
    elif after_time:
        found.append((0, rules.end_id))  # a segment has ended: the next begins, or none
    times = (token_id for token_id in reversed(token_ids) if token_id >= begin)
    if (latest := next(times, None)) is not None:
        # The next segment may begin when the last ended; a segment ends later than it began.
        found.append((begin, latest if after_time and not after_two else latest + 1))
    return found
