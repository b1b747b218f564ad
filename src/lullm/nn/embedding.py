"""Token embedding and language-model head, which may share one matrix."""

import torch
from torch import Tensor

from lullm.nn.linear import Matrix
from lullm.ops.table import Ops


class Embedding(Matrix):
    """One row per token of the vocabulary; weight `[V, H]`."""

    def forward(self, token_ids: Tensor, ops: Ops) -> Tensor:  # [T] -> [T, H]
        if self.layout is None:
            return ops.embedding(token_ids, self.weight)
        return ops.quantized_embedding(token_ids, self.weight, self.layout, self.dtype)


class LMHead(Matrix):
    """Hidden states to logits. A tied head has no weight and uses the embedding's."""

    def __init__(self, vocab_size: int, hidden_size: int, tied: bool, dtype: torch.dtype):
        super().__init__(vocab_size, hidden_size, dtype)
        if tied:
            self.register_parameter("weight", None)

    def forward(self, hidden: Tensor, embedding: Embedding, ops: Ops) -> Tensor:  # [N, H] -> [N, V] float32
        matrix = embedding if self.weight is None else self
        if matrix.layout is None:
            return ops.logits(hidden, matrix.weight)
        return ops.quantized_logits(hidden, matrix.weight, matrix.layout)
