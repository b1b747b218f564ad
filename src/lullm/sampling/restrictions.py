"""Which tokens a draw may choose: logit_bias, allowed_token_ids, a grammar, bad words, min_tokens, a thinking budget.

A forbidden token's logit becomes minus infinity. Only the named places are read and written. Token ids outside the
vocabulary are ignored.
"""

import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from lullm.ops import in_place
from lullm.sampling.masks import Masks
from lullm.sampling.penalties import on_device, output_ids
from lullm.text.reply.thinking import forced_id
from lullm.types.draw import Draw, LogitEdits
from lullm.types.packed import unpack

Forbid = Callable[[Tensor, Tensor, Tensor], None]
"""`Ops.forbid_`."""

Places = tuple[Tensor, Tensor]
"""(rows, token ids) on the logits' device, as an index."""


def apply_restrictions_(
    logits: Tensor, draws: Sequence[Draw], masks: Masks | None = None, forbid: Forbid = in_place.forbid_
) -> None:
    """Bias, allowed tokens, grammars, forbidden tokens, forced ones, in place on logits [N, V]. Does not synchronise.

    Args:
        masks: of the draws whose guides apply here.
        forbid: `Ops.forbid_`.

    If bad words and min_tokens would leave no token, this draw ignores them and takes any of `allowed_token_ids`, of
    its grammar's tokens, or of the whole vocabulary. A thinking budget that is used up leaves exactly one token.
    """
    edits = [(row, draw.params.edits) for row, draw in enumerate(draws) if draw.params.edits is not None]
    biases = [(row, edit.logit_bias) for row, edit in edits if edit.logit_bias]
    if biases:
        _add_bias_(logits, biases)
    allowed = [(row, edit.allowed_token_ids) for row, edit in edits if edit.allowed_token_ids is not None]
    if allowed:
        _forbid_all_but_allowed_(logits, allowed)
    if masks is not None:
        forbid(logits, torch.tensor(masks.rows), torch.from_numpy(masks.allowed))
    forbidden = [
        (row, ids)
        for row, edit in edits
        if (ids := forbidden_ids(draws[row], edit, logits.shape[1], _grammatical(masks, row, edit)))
    ]
    if forbidden:
        logits[_places(forbidden, logits)] = -torch.inf
    for row, edit in edits:
        if edit.thinking is not None and (token_id := forced_id(edit.thinking, output_ids(draws[row]))) is not None:
            logits[row] = -torch.inf
            logits[row, token_id] = 0.0


def forbidden_ids(
    draw: Draw, edits: LogitEdits, vocab_size: int, grammatical: Callable[[], list[int]] | None = None
) -> set[int]:
    """The tokens that bad words, min_tokens and the model's files forbid now; empty if none would be left. Host only.

    Args:
        grammatical: returns the tokens that the draw's grammar allows; None: it has no grammar.
    """
    ids: set[int] = set()
    if edits.bad_words_ids:
        token_ids = unpack(draw.token_ids)
        ids.update(
            word[-1]
            for word in edits.bad_words_ids
            if word and len(word) <= draw.output_len + 1 and _ends_with(token_ids, word[:-1])
        )
    if draw.output_len < edits.min_tokens:
        ids.update(edits.end_token_ids)
    if edits.rules.timestamps is None:  # else they went before
        ids.update(edits.rules.suppressed_ids)
        if draw.output_len == 0:
            ids.update(edits.rules.begin_suppressed_ids)
    ids = {token_id for token_id in ids if 0 <= token_id < vocab_size}
    if not ids:
        return ids
    allowed = edits.allowed_token_ids
    if grammatical is not None:
        found = tuple(grammatical())
        allowed = found if allowed is None else tuple(set(allowed).intersection(found))
    nothing_left = len(ids) == vocab_size if allowed is None else ids.issuperset(_within(allowed, vocab_size))
    return set() if nothing_left else ids


def _grammatical(masks: Masks | None, row: int, edits: LogitEdits) -> Callable[[], list[int]] | None:
    """The tokens that a draw's grammar allows, if it has one."""
    return None if edits.guide is None or masks is None else functools.partial(masks.tokens_of_row, row)


def _ends_with(token_ids: Sequence[int], end: Sequence[int]) -> bool:
    return not end or list(token_ids[-len(end) :]) == list(end)


def _within(token_ids: Iterable[int], vocab_size: int) -> list[int]:
    return [token_id for token_id in token_ids if 0 <= token_id < vocab_size]


def _add_bias_(logits: Tensor, biases: Sequence[tuple[int, dict[int, float]]]) -> None:
    inside = [b for _, bias in biases for token_id, b in bias.items() if 0 <= token_id < logits.shape[1]]
    # A dict names each token once, so each place gets one bias.
    logits[_places(biases, logits)] += torch.tensor(inside, dtype=logits.dtype).to(logits.device, non_blocking=True)


def _forbid_all_but_allowed_(logits: Tensor, allowed: Sequence[tuple[int, tuple[int, ...]]]) -> None:
    places = _places(allowed, logits)
    kept = logits[places]
    logits[torch.tensor([row for row, _ in allowed]).to(logits.device, non_blocking=True)] = -torch.inf
    logits[places] = kept


def _places(ids_of_rows: Sequence[tuple[int, Iterable[int]]], like: Tensor) -> Places:
    """The places of (row, token ids) pairs in logits like `like` [N, V], without ids outside its vocabulary."""
    ids = [np.fromiter(row_ids, np.int64) for _, row_ids in ids_of_rows]
    rows = np.repeat(np.array([row for row, _ in ids_of_rows], np.int64), [len(row_ids) for row_ids in ids])
    flat = np.concatenate(ids)
    inside = (flat >= 0) & (flat < like.shape[1])
    rows, flat = rows[inside], flat[inside]
    return on_device(rows, like), on_device(flat, like)
