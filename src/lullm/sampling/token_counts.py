"""TokenCounts: the tokens of sequences with penalties, counted on the device from step to step.

`penalties` builds lists of all tokens on the host for each step, and copies megabytes. Here a step brings only new
tokens. A draw still carries all of its tokens. They are compared as bytes with those that were counted, and counted
anew where they differ: after a fork or a beam. So the counts are always those of the draw, and no
message about ended sequences is needed.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lullm.types.draw import Draw
from lullm.types.packed import num_packed
from lullm.units import next_power_of_2


@dataclass(slots=True)
class _Counted:
    """The tokens that are counted at a place."""

    place: int
    token_ids: bytes = b""
    prompt_len: int = 0


@dataclass(slots=True)
class Arrivals:
    """A batch's changes to the counts. `places` by row; the others are flat places `place * V + token id`."""

    places: list[int]
    cleared: list[int]
    occurred: np.ndarray
    output: np.ndarray


class TokenCounts:
    """Penalties by counts; the logits get the same bits as from `apply_penalties_`.

    Counts take 5 bytes for each token id and row, for as many rows with penalties as the largest batch so far had.

    Args:
        vocab_size: V.
    """

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size
        self._counted: OrderedDict[tuple[int, int], _Counted] = OrderedDict()  # least recently used first
        self._free: list[int] = []
        self._occurs: Tensor | None = None  # [C, V] bool: in the prompt or the output
        self._counts: Tensor | None = None  # [C, V] int32: in the output

    def apply_(self, logits: Tensor, draws: Sequence[Draw]) -> None:
        """See `apply_penalties_`. Logits [N, V]."""
        edits = {row: draw.params.edits for row, draw in enumerate(draws) if draw.params.edits is not None}
        rows = [row for row, edit in edits.items() if edit.reads_prompt]
        if not rows:
            return
        occurs, counts = self._room(len(rows), logits.device)
        arrivals = self.arrivals([draws[row] for row in rows])
        _add(occurs, counts, arrivals)
        numbers = [
            (row, place, edits[row].presence_penalty, edits[row].frequency_penalty, edits[row].repetition_penalty)
            for row, place in zip(rows, arrivals.places, strict=True)
        ]
        table = torch.tensor(numbers, dtype=torch.float64).T.contiguous().to(logits.device, non_blocking=True)
        where, places = table[0].long(), table[1].long()
        presence, frequency, factors = table[2:].unsqueeze(2)  # [R, 1] each
        found = logits[where]  # [R, V]
        most = torch.finfo(logits.dtype).max
        if any(number[4] != 1.0 for number in numbers):
            factor = factors.clamp(max=most).to(logits.dtype)
            penalized = torch.where(found > 0, found / factor, found * factor).clamp(max=most)
            found = torch.where(occurs[places] & (factors != 1.0), penalized, found)
        if any(number[2] or number[3] for number in numbers):
            of_output = counts[places]
            penalty = (presence + frequency * of_output).to(logits.dtype)
            found = torch.where(of_output > 0, found - penalty, found)
        logits[where] = found

    def arrivals(self, draws: Sequence[Draw]) -> Arrivals:
        """The changes that these draws bring, now recorded as counted. Host only; there must be room for all."""
        found = Arrivals([], [], np.zeros(0, np.int64), np.zeros(0, np.int64))
        times: dict[int, int] = {}
        keys = []
        for draw in draws:  # a sequence that is about to be forked draws more than once
            times[draw.seq_id] = times.get(draw.seq_id, -1) + 1
            keys.append((draw.seq_id, times[draw.seq_id]))
        for key in keys:
            if key in self._counted:
                self._counted.move_to_end(key)
        occurred, output = [], []
        for key, draw in zip(keys, draws, strict=True):
            counted = self._counted.get(key) or self._new(key)
            prompt_len = num_packed(draw.token_ids) - draw.output_len
            if counted.prompt_len != prompt_len or not draw.token_ids.startswith(counted.token_ids):
                counted.token_ids = b""
            if not counted.token_ids:
                found.cleared.append(counted.place)
            num_known = num_packed(counted.token_ids)
            new = np.frombuffer(draw.token_ids, np.int32)[num_known:] + np.int64(counted.place * self._vocab_size)
            occurred.append(new)
            output.append(new[max(prompt_len - num_known, 0) :])
            counted.token_ids, counted.prompt_len = draw.token_ids, prompt_len
            found.places.append(counted.place)
        found.occurred, found.output = np.concatenate(occurred), np.concatenate(output)
        return found

    def _new(self, key: tuple[int, int]) -> _Counted:
        """Take a free place, or the least recently used one, which no draw of this batch uses."""
        place = self._free.pop() if self._free else self._counted.popitem(last=False)[1].place
        self._counted[key] = _Counted(place)
        return self._counted[key]

    def _room(self, num_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The counts, for `num_rows` rows at least. If they must grow, counting starts again."""
        if self._occurs is None or self._counts is None or len(self._occurs) < num_rows:
            capacity = next_power_of_2(num_rows)
            self._occurs = torch.zeros(capacity, self._vocab_size, dtype=torch.bool, device=device)
            self._counts = torch.zeros(capacity, self._vocab_size, dtype=torch.int32, device=device)
            self._counted.clear()
            self._free = list(range(capacity))
        return self._occurs, self._counts


def _add(occurs: Tensor, counts: Tensor, arrivals: Arrivals) -> None:
    if arrivals.cleared:
        cleared = torch.tensor(arrivals.cleared).to(occurs.device, non_blocking=True)
        occurs.index_fill_(0, cleared, False)
        counts.index_fill_(0, cleared, 0)
    if len(arrivals.occurred):
        places = torch.from_numpy(arrivals.occurred).to(occurs.device, non_blocking=True)
        occurs.view(-1).index_fill_(0, places, True)
    if len(arrivals.output):
        places = torch.from_numpy(arrivals.output).to(counts.device, non_blocking=True)
        ones = torch.ones(len(places), dtype=counts.dtype, device=counts.device)
        counts.view(-1).index_add_(0, places, ones)
