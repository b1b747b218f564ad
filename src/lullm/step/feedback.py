"""TokenFeedback: passes drawn tokens to later steps on the device, before the host knows them.

A plan made ahead holds PENDING_TOKEN for a token that an earlier step draws. The host knows which draw of which step
gives the token. The device runs the steps in order and reads the token at its place.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lullm.types.draw import Draw
from lullm.types.step import PENDING_TOKEN, StepPlan


class TokenFeedback:
    """The tokens of the last `num_steps` steps that were started.

    A sequence need not be in every plan, so its pending token may come from any of them.

    Args:
        num_steps: steps that may be unfinished when the next one starts.
        capacity: the most draws of one step.

    Attributes:
        tokens: [num_steps * capacity] int64 on the device, at a fixed address. The steps write in turn, each at its
            end.
    """

    def __init__(self, num_steps: int, capacity: int, device: torch.device):
        self.tokens = torch.zeros(num_steps * capacity, dtype=torch.int64, device=device)
        self._num_steps = num_steps
        self._capacity = capacity
        self._turn = 0
        self._places: deque[dict[int, int]] = deque(maxlen=num_steps)  # one per step, newest first: sequence -> place

    def sources(self, plan: StepPlan, token_ids: np.ndarray) -> np.ndarray | None:
        """[T] int64: the place in `tokens` of each pending token of the plan, -1 for known ones; None: all are known.

        Host only, just before the step starts. `token_ids` are the plan's.
        """
        is_pending = token_ids == PENDING_TOKEN
        if not is_pending.any():
            return None
        sources = np.full(len(token_ids), -1, np.int64)
        row = 0
        for span in plan.spans:
            row += span.num_tokens
            if is_pending[row - 1]:
                sources[row - 1] = self._place(span.seq_id)
        return sources

    def expect(self, draws: Sequence[Draw]) -> int:
        """Note the draws, in order, of the next step to start. Host only, after its `sources`.

        Returns:
            The place of its first token, for `take`. It replaces the tokens of the oldest step.
        """
        self._turn = (self._turn + 1) % self._num_steps
        first = self._turn * self._capacity
        self._places.appendleft({draw.seq_id: place for place, draw in enumerate(draws, first)})
        return first

    def _place(self, seq_id: int) -> int:
        """The place of the sequence's newest token. Raises KeyError: none of the last steps draws for it."""
        for places in self._places:
            if seq_id in places:
                return places[seq_id]
        raise KeyError(seq_id)

    def fill_in(self, token_ids: Tensor, sources: Tensor) -> Tensor:
        """The token ids [T] with the pending ones filled in. On the device, before the step computes."""
        return self.tokens[sources.clamp(min=0)].where(sources >= 0, token_ids)

    def take(self, tokens: Tensor, first: int) -> None:
        """Store the step's drawn tokens, [N] int64, from place `first` on. On the device, at the step's end.

        NO_TOKEN becomes a valid token, because a later step may compute with it before the host ends the sequence.
        """
        torch.clamp(tokens, min=0, out=self.tokens[first : first + len(tokens)])
