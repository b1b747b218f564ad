"""Training batches for the demo model: documents packed into rows of three lengths.

A step sees many short rows (questions and sums, where attention is cheap) and a few rows with stories; every fourth
step one long row holds a conversation up to the full context, so that long chats and shared prefixes look familiar.
Documents in a row see the ones before them, as the turns of a chat do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.corpus.corpus import END_OF_TEXT, Piece, draw_conversation, draw_plain

Document = list[Piece]
Encoded = tuple[list[int], list[bool]]

# Documents waiting to be fitted into a row; with 24 to choose from about 5 % of a short row stays padding.
_WAITING = 24
# Documents drawn and tokenized at a time: one call of the tokenizer for many pieces.
_DRAWN_AT_ONCE = 512


@dataclass(frozen=True)
class RowKind:
    """A kind of row: length in tokens, how many a step holds, what documents fill it, and in which steps it comes."""

    length: int
    rows: int
    draw: Callable[[random.Random], Document]
    every: int = 1


def short_document(rng: random.Random) -> Document:
    """A plain list of sums or facts (3 in 10), or a chat of one or two questions."""
    return draw_plain(rng) if rng.random() < 0.3 else draw_conversation(rng, 1 if rng.random() < 0.8 else 2)


def story_document(rng: random.Random) -> Document:
    """One story, plain or as the answer to a request."""
    return draw_plain(rng, 1.0) if rng.random() < 0.2 else draw_conversation(rng, 1, 1.0)


def long_document(rng: random.Random) -> Document:
    """A chat of 6 to 30 turns, one in eight of them a story."""
    return draw_conversation(rng, rng.randint(6, 30), 0.125)


ROW_KINDS: tuple[RowKind, ...] = (
    RowKind(128, 40, short_document),
    RowKind(256, 4, story_document),
    RowKind(1024, 1, long_document, every=4),
)
"""The rows of a training step: 5120 + 1024 tokens, and 1024 more in every fourth step."""


class RowPacker:
    """Endless rows of one kind, each starting with a fresh document and padded where nothing fits any more."""

    def __init__(self, kind: RowKind, tokenizer: Tokenizer, seed: str) -> None:
        self._kind = kind
        self._tokenizer = tokenizer
        pad = tokenizer.token_to_id(END_OF_TEXT)
        assert pad is not None, "the demo's tokenizer has it"
        self._pad = pad
        self._drawn = self._draw(random.Random(seed))
        self._waiting: list[Encoded] = []

    def _draw(self, rng: random.Random) -> Iterator[Encoded]:
        while True:
            documents = [self._kind.draw(rng) for _ in range(_DRAWN_AT_ONCE)]
            pieces = [piece for document in documents for piece in document]
            encodings = iter(self._tokenizer.encode_batch([piece.text for piece in pieces], add_special_tokens=False))
            for document in documents:
                ids: list[int] = []
                learn: list[bool] = []
                for piece in document:
                    piece_ids = next(encodings).ids
                    ids += piece_ids
                    learn += [piece.learn] * len(piece_ids)
                # A chat longer than the row is cut: the row is then full, and its end is not an end of text.
                yield ids[: self._kind.length + 1], learn[: self._kind.length + 1]

    def _row(self) -> Encoded:
        room = self._kind.length + 1
        ids: list[int] = []
        learn: list[bool] = []
        while True:
            while len(self._waiting) < _WAITING:
                self._waiting.append(next(self._drawn))
            fits = next((at for at, (each, _) in enumerate(self._waiting) if len(each) <= room - len(ids)), None)
            if fits is None:
                missing = room - len(ids)
                return ids + [self._pad] * missing, learn + [False] * missing
            more_ids, more_learn = self._waiting.pop(fits)
            ids += more_ids
            learn += more_learn

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs and targets, int64 [rows, length], and the mask of targets to learn, bool [rows, length]."""
        rows = [self._row() for _ in range(self._kind.rows)]
        ids = torch.tensor([row[0] for row in rows])
        learn = torch.tensor([row[1] for row in rows])
        return ids[:, :-1], ids[:, 1:], learn[:, 1:]
