"""Whisper's rules for timestamps among an output's tokens (`TimestampRules`)."""

import functools
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
    for row, draw in enumerate(draws):
        edits = draw.params.edits
        if edits is not None and edits.rules.timestamps is not None:
            _apply_(logits[row], draw, edits.rules, edits.rules.timestamps)


def _apply_(logits: Tensor, draw: Draw, rules: TokenRules, times: TimestampRules) -> None:
    """For one draw, in place on logits [V]. Row by row, since copies of 51,866 logits took 2 ms for each."""
    vocab_size, first = len(logits), times.first_id
    suppressed = _suppressed(rules, draw.output_len == 0, vocab_size)
    ranges = forbidden_ranges(times, output_ids(draw).tolist())
    allowed = np.ones(vocab_size, bool)
    allowed[suppressed] = False
    for begin, end in ranges:
        allowed[begin:end] = False
    has_text, has_times = bool(allowed[:first].any()), bool(allowed[first:].any())
    if not (has_text or has_times):
        return
    if len(suppressed):
        logits[on_device(suppressed, logits)] = -torch.inf
    for begin, end in ranges:
        logits[begin:end] = -torch.inf
    if has_text and has_times:
        # Both sums are over the same probabilities, so logits do.
        times_win = logits[first:].logsumexp(-1) > logits[:first].amax(-1)
        logits[:first] += torch.where(times_win, -torch.inf, 0.0)  # `masked_fill_` took 0.2 ms


@functools.lru_cache(maxsize=8)
def _suppressed(rules: TokenRules, is_first: bool, vocab_size: int) -> np.ndarray:
    """The ids that the model's files forbid."""
    ids = {*rules.suppressed_ids, *(rules.begin_suppressed_ids if is_first else ())}
    return np.array(sorted(token_id for token_id in ids if 0 <= token_id < vocab_size), np.int64)


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
