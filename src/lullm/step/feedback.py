"""TokenFeedback: passes drawn tokens to the next step on the device, before the host knows them.

A plan that was made ahead holds PENDING_TOKEN for each token of the step before it. The host knows the number of the
draw that gives the token. The device runs the steps in order and reads the token by this number.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lullm.types.draw import Draw
from lullm.types.step import PENDING_TOKEN, StepPlan


class TokenFeedback:
    """The tokens of the last step that was started.

    Args:
        capacity: the most draws of one step.

    Attributes:
        tokens: [capacity] int64 on the device, at an address that stays; written at the end of each step.
    """

    def __init__(self, capacity: int, device: torch.device):
        self.tokens = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._places: dict[int, int] = {}

    def sources(self, plan: StepPlan, token_ids: np.ndarray) -> np.ndarray | None:
        """[T] int64: for each token of the plan its place in `tokens`, -1 where it is known; None: all are known.

        Host only, when the step is about to be started. `token_ids` are the plan's.
        """
        is_pending = token_ids == PENDING_TOKEN
        if not is_pending.any():
            return None
        sources = np.full(len(token_ids), -1, np.int64)
        row = 0
        for span in plan.spans:
            row += span.num_tokens
            if is_pending[row - 1]:
                sources[row - 1] = self._places[span.seq_id]
        return sources

    def expect(self, draws: Sequence[Draw]) -> None:
        """Note the draws, in order, of the step that is started next. Host only, after its `sources`."""
        self._places = {draw.seq_id: place for place, draw in enumerate(draws)}

    def fill_in(self, token_ids: Tensor, sources: Tensor) -> Tensor:
        """The token ids [T] with the pending ones in place. On the device, before the step computes."""
        return self.tokens[sources.clamp(min=0)].where(sources >= 0, token_ids)

    def take(self, tokens: Tensor) -> None:
        """Keep what the step has drawn, [N] int64. On the device, at the step's end.

        NO_TOKEN becomes a valid token, because the next step may compute with it before the host ends the sequence.
        """
        torch.clamp(tokens, min=0, out=self.tokens[: len(tokens)])
