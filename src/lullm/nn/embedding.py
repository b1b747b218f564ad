"""Token embedding and language-model head, which may share one matrix."""

import torch
from torch import Tensor, nn

from lullm.nn.linear import meta_parameter
from lullm.ops.table import Ops


class Embedding(nn.Module):
    """One row per token of the vocabulary; weight `[V, H]`."""

    def __init__(self, vocab_size: int, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((vocab_size, hidden_size), dtype)

    def forward(self, token_ids: Tensor, ops: Ops) -> Tensor:  # [T] -> [T, H]
        return ops.embedding(token_ids, self.weight)


class LMHead(nn.Module):
    """Hidden states to logits. Tied: it has no weight of its own and uses the embedding's."""

    def __init__(self, vocab_size: int, hidden_size: int, tied: bool, dtype: torch.dtype):
        super().__init__()
        self.weight = None if tied else meta_parameter((vocab_size, hidden_size), dtype)

    def forward(self, hidden: Tensor, embedding: Embedding, ops: Ops) -> Tensor:  # [N, H] -> [N, V] float32
        weight = embedding.weight if self.weight is None else self.weight
        return ops.linear(hidden, weight, None).float()
