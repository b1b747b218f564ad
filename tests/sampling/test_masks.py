"""Masks of grammars on logits."""

import numpy as np
import pytest
import torch

from lullm.sampling.masks import Masks
from lullm.sampling.restrictions import apply_restrictions_
from lullm.types.draw import Draw, DrawParams, LogitEdits
from lullm.types.guided.params import Guide

VOCAB_SIZE = 100


def packed(allowed):
    """[R, V] bools as the bits of `Masks.allowed`, with ones behind the vocabulary."""
    room = np.ones((len(allowed), 128), bool)
    room[:, :VOCAB_SIZE] = allowed
    return np.packbits(room, axis=1, bitorder="little").view(np.int32)


def draw(seq_id, **edits):
    return Draw(seq_id, 0, DrawParams(edits=LogitEdits(**edits)))


@pytest.mark.parametrize("num_forbidden", [0, 3, 50, 97, 99, 100])
def test_exactly_the_forbidden_places_change(num_forbidden):
    """In some rows of a batch."""
    rng = np.random.default_rng(num_forbidden)
    forbidden = np.zeros((2, VOCAB_SIZE), bool)
    for row in forbidden:
        row[rng.permutation(VOCAB_SIZE)[:num_forbidden]] = True
    guide = Guide("g", (0,))
    draws = [draw(0), draw(1, guide=guide), draw(2), draw(3, guide=guide)]
    logits = torch.randn(4, VOCAB_SIZE)
    expected = logits.clone()
    expected[[1, 3]] = expected[[1, 3]].masked_fill(torch.from_numpy(forbidden), -torch.inf)
    apply_restrictions_(logits, draws, Masks([1, 3], packed(~forbidden)))
    assert torch.equal(logits, expected)


def test_what_else_forbids_yields_where_nothing_would_be_left():
    """min_tokens forbids the end, which is all that the grammar allows; a list of allowed tokens narrows it."""
    forbidden = np.ones((1, VOCAB_SIZE), bool)
    forbidden[0, [7, 9]] = False
    masks = Masks([0], packed(~forbidden))
    for end_token_ids, expected in (((7, 9), [7, 9]), ((7,), [9]), ((), [7, 9])):
        logits = torch.zeros(1, VOCAB_SIZE)
        edits = {"min_tokens": 3, "end_token_ids": end_token_ids, "guide": Guide("g", (7,))}
        apply_restrictions_(logits, [draw(0, **edits)], masks)
        assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == expected
    logits = torch.zeros(1, VOCAB_SIZE)
    apply_restrictions_(logits, [draw(0, allowed_token_ids=(3, 9), guide=Guide("g", (7,)))], masks)
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [9]
