"""Masks: the tokens that grammars allow, found on a thread beside the forward pass, or after a token was refused.

A model that was trained for a form nearly always follows it. So the token is chosen first if its grammar can only
accept it or refuse it (`Late`), and a mask is found only after a refusal. Checking one token costs some microseconds,
the mask of a string with a bound up to 7 ms for 150,000 tokens.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lullm.text.guided.matchers import Guided, Matchers, unpacked
from lullm.types.draw import Draw
from lullm.types.packed import INT_BYTES

Late = Callable[[Draw], bool]
"""Whether a token chosen without the draw's mask, and accepted by the grammar, is also the choice with the mask."""


@dataclass(frozen=True, slots=True)
class Masks:
    """`allowed` [len(rows), W]: a bit for each token that the draws of these rows may choose; see `Ops.forbid_`."""

    rows: list[int]
    allowed: npt.NDArray[np.int32]

    def tokens_of_row(self, row: int) -> list[int]:
        """The tokens that a draw with a guide may choose."""
        return np.flatnonzero(unpacked(self.allowed[self.rows.index(row)])).tolist()

    def part(self, rows: Collection[int]) -> "Masks | None":
        """The masks of some rows; None: they have none."""
        places = [place for place, row in enumerate(self.rows) if row in rows]
        if len(places) == len(self.rows):
            return self
        return Masks([self.rows[place] for place in places], self.allowed[places]) if places else None


def _no_masks() -> None:
    return None


@dataclass(frozen=True, slots=True)
class StepGuides:
    """The guides of one step's draws.

    Attributes:
        early: waits for the masks that are found beside the forward pass; None: there are none.
    """

    early: Callable[[], Masks | None] = _no_masks
    _matchers: Matchers | None = None
    _late: dict[int, Guided] = field(default_factory=dict)

    @property
    def late(self) -> Collection[int]:
        """The rows of the draws that need `settle`."""
        return self._late.keys()

    def settle(self, token_ids: list[int]) -> Masks | None:
        """Replace tokens where grammars force others. `token_ids` [N] by row, chosen without masks.

        Returns the masks of the late draws whose grammars refuse their tokens; None: all are settled.
        """
        assert self._matchers is not None
        self.early()  # the matchers serve one thread at a time
        refused = []
        for row, guided in self._late.items():
            token_id = self._matchers.settle(guided, token_ids[row])
            if token_id is None:
                refused.append(row)
            else:
                token_ids[row] = token_id
        return Masks(refused, self._matchers.allowed([self._late[row] for row in refused])) if refused else None


NO_GUIDES = StepGuides()


class MaskMaker:
    """Makes the masks of a step. Its only state is the caches of `Matchers`."""

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int) -> None:
        self._matchers = Matchers(tokenizer_json, vocab_size)
        self._thread: ThreadPoolExecutor | None = None

    def start(self, draws: Sequence[Draw], is_late: Late) -> StepGuides:
        """Start to find the masks of these draws. None of their tokens may be pending."""
        self._matchers.step += 1
        early: dict[int, Guided] = {}
        late: dict[int, Guided] = {}
        for row, draw in enumerate(draws):
            if draw.params.edits is not None and draw.params.edits.guide is not None:
                output = draw.token_ids[len(draw.token_ids) - draw.output_len * INT_BYTES :]
                found = late if is_late(draw) else early
                found[row] = Guided(draw.seq_id, draw.params.edits.guide, output)
        if not early:
            return StepGuides(_no_masks, self._matchers, late) if late else NO_GUIDES
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "lullm-masks")
        return StepGuides(self._thread.submit(self._masks, early).result, self._matchers, late)

    def _masks(self, guided: dict[int, Guided]) -> Masks:
        return Masks(list(guided), self._matchers.allowed(list(guided.values())))
