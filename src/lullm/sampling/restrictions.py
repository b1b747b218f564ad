"""Which tokens a draw may choose: logit_bias, allowed_token_ids, bad words and min_tokens.

A forbidden token's logit becomes minus infinity. As with the penalties, only the named places are touched. Token ids
outside the vocabulary are ignored.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from lullm.types.step import Draw

Places = tuple[Tensor, Tensor]
"""(rows, token ids) on the logits' device: an index into them."""


def apply_restrictions_(logits: Tensor, draws: Sequence[Draw]) -> None:
    """Bias, allowed tokens, forbidden tokens, in this order, in place on logits [N, V]. Does not synchronise.

    When bad words and min_tokens would leave no token at all, they yield for this draw and `allowed_token_ids` (or the
    whole vocabulary) is drawn from.
    """
    biased = [row for row, draw in enumerate(draws) if draw.params.logit_bias]
    if biased:
        _add_bias_(logits, draws, biased)
    restricted = [row for row, draw in enumerate(draws) if draw.params.allowed_token_ids is not None]
    if restricted:
        _forbid_all_but_allowed_(logits, draws, restricted)
    forbidden = [(row, ids) for row, draw in enumerate(draws) if (ids := forbidden_ids(draw, logits.shape[1]))]
    if forbidden:
        logits[_places(forbidden, logits)] = -torch.inf


def forbidden_ids(draw: Draw, vocab_size: int) -> set[int]:
    """The tokens that bad words and min_tokens forbid now; empty if nothing would be left. Host only."""
    if not draw.bad_words_ids and not draw.params.min_tokens:
        return set()
    output_len = len(draw.token_ids) - draw.prompt_len
    ids = {
        word[-1]
        for word in draw.bad_words_ids
        if word and len(word) <= output_len + 1 and _ends_with(draw.token_ids, word[:-1])
    }
    if output_len < draw.params.min_tokens:
        ids.update(draw.end_token_ids)
    ids = {token_id for token_id in ids if 0 <= token_id < vocab_size}
    allowed = draw.params.allowed_token_ids
    nothing_left = len(ids) == vocab_size if allowed is None else ids.issuperset(_within(allowed, vocab_size))
    return set() if nothing_left else ids


def _ends_with(token_ids: Sequence[int], end: Sequence[int]) -> bool:
    return not end or list(token_ids[-len(end) :]) == list(end)


def _within(token_ids: Iterable[int], vocab_size: int) -> list[int]:
    return [token_id for token_id in token_ids if 0 <= token_id < vocab_size]


def _add_bias_(logits: Tensor, draws: Sequence[Draw], rows: list[int]) -> None:
    biases = [(row, draws[row].params.logit_bias or {}) for row in rows]
    inside = [b for _, bias in biases for token_id, b in bias.items() if 0 <= token_id < logits.shape[1]]
    # A dict names each token once, so that no place is added to twice.
    logits[_places(biases, logits)] += torch.tensor(inside, dtype=logits.dtype).to(logits.device, non_blocking=True)


def _forbid_all_but_allowed_(logits: Tensor, draws: Sequence[Draw], rows: list[int]) -> None:
    places = _places([(row, draws[row].params.allowed_token_ids or ()) for row in rows], logits)
    kept = logits[places]
    logits[torch.tensor(rows).to(logits.device, non_blocking=True)] = -torch.inf
    logits[places] = kept


def _places(ids_of_rows: Sequence[tuple[int, Iterable[int]]], like: Tensor) -> Places:
    """The places of (row, token ids) pairs in logits like `like` [N, V], without ids outside its vocabulary."""
    ids = [np.fromiter(row_ids, np.int64) for _, row_ids in ids_of_rows]
    rows = np.repeat(np.array([row for row, _ in ids_of_rows], np.int64), [len(row_ids) for row_ids in ids])
    flat = np.concatenate(ids)
    inside = (flat >= 0) & (flat < like.shape[1])
    rows, flat = rows[inside], flat[inside]
    return (
        torch.from_numpy(rows).to(like.device, non_blocking=True),
        torch.from_numpy(flat).to(like.device, non_blocking=True),
    )
