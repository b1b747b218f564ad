"""Penalties on tokens that have occurred: repetition, presence, frequency.

They change only the logits of tokens in the sequence. For rows with a penalty the host builds flat (row, token id)
vectors, and only those places are read and written.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lullm.types.draw import Draw, LogitEdits


def apply_penalties_(logits: Tensor, draws: Sequence[Draw]) -> None:
    """Repetition penalty, then presence and frequency penalties, in place on logits [N, V]. Does not synchronise.

    repetition: l / r if l > 0 else l * r, for tokens of the prompt and the output (Keskar et al., "CTRL", 2019);
    presence and frequency: l - presence - frequency * count, for tokens of the output.
    """
    edits = [(row, draw.params.edits) for row, draw in enumerate(draws) if draw.params.edits is not None]
    repetition_rows = [row for row, edit in edits if edit.repetition_penalty != 1.0]
    if repetition_rows:
        _penalize_repetition_(logits, draws, repetition_rows)
    output_rows = [
        row for row, edit in edits if (edit.presence_penalty or edit.frequency_penalty) and draws[row].output_len
    ]
    if output_rows:
        _penalize_output_(logits, draws, output_rows)


def _penalize_repetition_(logits: Tensor, draws: Sequence[Draw], penalized: list[int]) -> None:
    token_ids = [np.frombuffer(draws[row].token_ids, np.int32) for row in penalized]
    lens = [len(ids) for ids in token_ids]
    factors = np.repeat([_edits(draws[row]).repetition_penalty for row in penalized], lens)
    places = (
        on_device(np.repeat(penalized, lens), logits),
        on_device(np.concatenate(token_ids, dtype=np.int64), logits),
    )
    factor = on_device(factors.clip(max=torch.finfo(logits.dtype).max), logits).to(logits.dtype)
    old = logits[places]
    # A token that occurs twice is written twice with the same value, so the distinct ones need not be found.
    new = torch.where(old > 0, old / factor, old * factor)
    # A tiny factor must not turn a finite logit into infinity, which would look like a broken model.
    logits[places] = new.clamp(max=torch.finfo(logits.dtype).max)


def _penalize_output_(logits: Tensor, draws: Sequence[Draw], penalized: list[int]) -> None:
    rows, token_ids, counts = count_output_tokens(draws, penalized, logits.shape[1])
    presence, frequency = np.zeros(len(draws)), np.zeros(len(draws))
    for row in penalized:
        edits = _edits(draws[row])
        presence[row], frequency[row] = edits.presence_penalty, edits.frequency_penalty
    penalty = on_device(presence[rows] + frequency[rows] * counts, logits).to(logits.dtype)
    logits[on_device(rows, logits), on_device(token_ids, logits)] -= penalty


def count_output_tokens(
    draws: Sequence[Draw], rows: Sequence[int], vocab_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, token ids, counts), one entry per distinct output token of each of `rows`. Host only."""
    keys = [output_ids(draws[row]).astype(np.int64) + row * vocab_size for row in rows]
    distinct, counts = np.unique(np.concatenate(keys), return_counts=True)
    return distinct // vocab_size, distinct % vocab_size, counts


def output_ids(draw: Draw) -> npt.NDArray[np.int32]:
    """A draw's output tokens before this one. The draw must carry its tokens."""
    token_ids = np.frombuffer(draw.token_ids, np.int32)
    return token_ids[len(token_ids) - draw.output_len :]


def _edits(draw: Draw) -> LogitEdits:
    """The penalties of a draw that has some."""
    assert draw.params.edits is not None
    return draw.params.edits


def on_device(array: np.ndarray, like: Tensor) -> Tensor:
    """Copy to the logits' device. Does not synchronise."""
    return torch.from_numpy(array).to(like.device, non_blocking=True)
