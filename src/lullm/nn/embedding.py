"""Token embedding and language-model head, which may share one matrix."""

import torch
from torch import Tensor, nn

from lullm.nn.linear import Matrix, meta_parameter
from lullm.ops.table import Ops


class Embedding(Matrix):
    """One row per token of the vocabulary; weight `[V, H]`."""

    def forward(self, token_ids: Tensor, ops: Ops) -> Tensor:  # [T] -> [T, H]
        return _rows(self, token_ids, ops)


class LMHead(Matrix):
    """Hidden states to logits. A tied head has no weight and uses the embedding's."""

    def __init__(self, vocab_size: int, hidden_size: int, tied: bool, dtype: torch.dtype):
        super().__init__(vocab_size, hidden_size, dtype)
        if tied:
            self.register_parameter("weight", None)

    def forward(self, hidden: Tensor, embedding: Embedding | None, ops: Ops) -> Tensor:  # [N, H] -> [N, V] float32
        matrix = self._matrix(embedding)
        if matrix.layout is None:
            return ops.logits(hidden, matrix.weight)
        return ops.quantized_logits(hidden, matrix.weight, matrix.layout)

    def some_logits(self, hidden: Tensor, token_ids: Tensor, embedding: Embedding | None, ops: Ops) -> Tensor:
        """The logits of `token_ids [K]` alone: `[N, K]` float32. Reads K rows of the matrix."""
        return _products(hidden, _rows(self._matrix(embedding), token_ids, ops))

    def _matrix(self, embedding: Embedding | None) -> Matrix:
        if self.weight is not None:
            return self
        assert embedding is not None, "a tied head stands where the embedding is"
        return embedding


class LabelHead(nn.Module):
    """Hidden states to a number per label; weight `[L, H]`. Few rows: neither packed nor quantized."""

    def __init__(self, num_labels: int, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((num_labels, hidden_size), dtype)

    def forward(self, hidden: Tensor) -> Tensor:  # [N, H] -> [N, L] float32
        return _products(hidden, self.weight)


def _products(hidden: Tensor, rows: Tensor) -> Tensor:  # [N, H], [K, H] -> [N, K] float32
    """One product at a time, so that a row's bits do not depend on the others. For few rows on both sides."""
    matrix = rows.float()
    return torch.stack([matrix @ row for row in hidden.float()])


def _rows(matrix: Matrix, token_ids: Tensor, ops: Ops) -> Tensor:
    """The rows `[T, H]` of these tokens."""
    if matrix.layout is None:
        return ops.embedding(token_ids, matrix.weight)
    return ops.quantized_embedding(token_ids, matrix.weight, matrix.layout, matrix.dtype)
