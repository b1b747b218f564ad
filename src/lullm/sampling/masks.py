"""Masks: the tokens that grammars forbid, found on a thread beside the forward pass."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lullm.text.guided.matchers import Guided, Matchers, unpacked
from lullm.types.draw import Draw
from lullm.types.packed import unpack


@dataclass(frozen=True, slots=True)
class Masks:
    """`allowed` [len(rows), W]: a bit for each token that the draws of these rows may choose; see `Ops.forbid_`."""

    rows: list[int]
    allowed: npt.NDArray[np.int32]

    def tokens_of_row(self, row: int) -> list[int]:
        """What a draw that has a guide may choose."""
        return np.flatnonzero(unpacked(self.allowed[self.rows.index(row)])).tolist()


class MaskMaker:
    """Makes the masks of a step. Keeps no state but the caches of `Matchers`."""

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int) -> None:
        self._matchers = Matchers(tokenizer_json, vocab_size)
        self._thread: ThreadPoolExecutor | None = None

    def start(self, draws: Sequence[Draw]) -> Callable[[], Masks | None]:
        """Begin with the masks of these draws; the call gives them, None if no draw has a guide.

        No token of these draws may be pending.
        """
        guided: dict[int, Guided] = {}
        for row, draw in enumerate(draws):
            if draw.params.edits is not None and draw.params.edits.guide is not None:
                token_ids = unpack(draw.token_ids)
                output_ids = token_ids[len(token_ids) - draw.output_len :]
                guided[row] = Guided(draw.seq_id, draw.params.edits.guide, output_ids)
        if not guided:
            return _no_masks
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "lullm-masks")
        return self._thread.submit(self._masks, guided).result

    def _masks(self, guided: dict[int, Guided]) -> Masks:
        return Masks(list(guided), self._matchers.allowed(list(guided.values())))


def _no_masks() -> None:
    return None
