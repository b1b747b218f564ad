"""Token embedding and language-model head, which may share one matrix.

Workers that share a model each have the whole embedding, of which a step reads a row per token. The head's rows are
divided between them, since they are a quarter of the bytes that a step of a small model reads. The columns are
gathered.
"""

import torch
from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.config.pooling.pooler import Classifier, DenseLayer, DenseLayers
from lullm.errors import ModelLoadError
from lullm.nn.linear import Matrix, PlainLinear, meta_parameter
from lullm.ops.quantized.weight import PANEL_ROWS, Layout
from lullm.ops.table import Ops
from lullm.types.parallel.placement import Axis
from lullm.units import cdiv, round_up

ALONE = Axis()


def num_share_rows(vocab_size: int, num_shares: int) -> int:
    """Rows of the head that one of several workers multiplies: whole panels of a packed or a quantized matrix."""
    return vocab_size if num_shares == 1 else round_up(cdiv(vocab_size, num_shares), PANEL_ROWS)


class Embedding(Matrix):
    """One row per token of the vocabulary; weight `[V, H]`."""

    def forward(self, token_ids: Tensor, ops: Ops) -> Tensor:  # [T] -> [T, H]
        return _rows(self, token_ids, ops)


class PositionEmbedding(Embedding):
    """A learned row per position. Raises ModelLoadError: a sequence may have more positions than the model."""

    def __init__(self, config: ModelConfig, num_rows: int, size: int, dtype: torch.dtype, max_model_len: int):
        if max_model_len > config.max_position_embeddings:
            raise ModelLoadError(
                f"{config.architecture} has learned {config.max_position_embeddings} positions; max_model_len "
                f"({max_model_len}) must not be more"
            )
        super().__init__(num_rows, size, dtype)


class LMHead(Matrix):
    """Hidden states to logits. A tied head has no weight and uses the embedding's.

    Of workers that share it, number `axis.rank` has the rows from `first_row` on. If the vocabulary is not a multiple
    of the share, the weight (of a tied head the embedding) has more rows; their results are cut off.
    """

    def __init__(self, vocab_size: int, hidden_size: int, tied: bool, dtype: torch.dtype, axis: Axis = ALONE):
        super().__init__(num_share_rows(vocab_size, axis.size), hidden_size, dtype)
        self.vocab_size = vocab_size
        self.num_own_rows = num_share_rows(vocab_size, axis.size)
        self.num_shares = axis.size
        self.first_row = axis.rank * self.num_own_rows
        if tied:
            self.register_parameter("weight", None)

    def forward(self, hidden: Tensor, embedding: Embedding | None, ops: Ops) -> Tensor:  # [N, H] -> [N, V] float32
        weight, layout = self._own_rows(embedding)
        logits = ops.logits(hidden, weight) if layout is None else ops.quantized_logits(hidden, weight, layout)
        if self.num_shares == 1:
            return logits
        gathered = ops.all_gather(logits)
        return gathered if gathered.shape[1] == self.vocab_size else gathered[:, : self.vocab_size]

    def _matrix(self, embedding: Embedding | None) -> Matrix:
        if self.weight is not None:
            return self
        assert embedding is not None, "a tied head stands where the embedding is"
        return embedding

    def _own_rows(self, embedding: Embedding | None) -> tuple[Tensor, Layout | None]:
        matrix = self._matrix(embedding)
        weight, layout = matrix.weight, matrix.layout
        if self.num_shares == 1 or matrix is self:
            return weight, layout
        if layout is None:
            return weight[self.first_row : self.first_row + self.num_own_rows], None
        first_panel, num_panels = self.first_row // PANEL_ROWS, self.num_own_rows // PANEL_ROWS
        panels = weight[first_panel : first_panel + num_panels]
        return panels, layout.with_rows(self.num_own_rows)

    def some_logits(self, hidden: Tensor, token_ids: Tensor, embedding: Embedding | None, ops: Ops) -> Tensor:
        """The logits of `token_ids [K]` alone: `[N, K]` float32. Reads K rows of the matrix, if all are here."""
        if self.weight is not None and self.num_shares > 1:
            return self(hidden, embedding, ops)[:, token_ids]
        return _products(hidden, _rows(self._matrix(embedding), token_ids, ops))


class LogitBias(nn.Module):
    """A bias on every row of logits; weight `[V]` float32. Workers that share the head have all of it."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self.weight = meta_parameter((vocab_size,), torch.float32)

    def forward(self, logits: Tensor, ops: Ops) -> None:  # [N, V] float32, in place
        for row in logits:  # few: the rows that draw a token
            ops.add_(row, self.weight)


class LabelHead(nn.Module):
    """Hidden states to a number per label; weight `[L, H]`. Few rows: neither packed nor quantized."""

    def __init__(self, num_labels: int, hidden_size: int, dtype: torch.dtype, has_bias: bool = False):
        super().__init__()
        self.weight = meta_parameter((num_labels, hidden_size), dtype)
        self.bias = meta_parameter((num_labels,), dtype) if has_bias else None

    def forward(self, hidden: Tensor, ops: Ops) -> Tensor:  # [N, H] -> [N, L] float32
        products = _products(hidden, self.weight)
        return products if self.bias is None else products + self.bias.float()


class RewardHead(nn.ModuleDict):
    """Hidden states through a layer and ReLU to a number per label; the layers have their names in checkpoints.

    No worker shares them, and `quantization` leaves them as they are.
    """

    def __init__(self, num_labels: int, hidden_size: int, dtype: torch.dtype):
        inner = PlainLinear(hidden_size, hidden_size, True, dtype)
        super().__init__({"0": inner, "2": LabelHead(num_labels, hidden_size, dtype, has_bias=True)})

    def forward(self, hidden: Tensor, ops: Ops) -> Tensor:  # [N, H] -> [N, L] float32
        scores: Tensor = self["2"](ops.activate(self["0"](hidden, ops), "relu"), ops)
        return scores


class DenseHead(nn.ModuleDict):
    """Layers of sentence-transformers by the names of their folders; no worker shares them, as above."""

    def __init__(self, head: DenseLayers, dtype: torch.dtype):
        super().__init__({layer.folder: _Dense(layer, dtype) for layer in head.layers})

    def forward(self, hidden: Tensor, ops: Ops) -> Tensor:  # [N, H] -> [N, K] float32
        for layer in self.values():
            hidden = layer(hidden, ops)
        return hidden.float()


class _Dense(nn.Module):
    def __init__(self, layer: DenseLayer, dtype: torch.dtype):
        super().__init__()
        self.linear = PlainLinear(layer.in_features, layer.out_features, layer.has_bias, dtype)
        self.activation = layer.activation

    def forward(self, hidden: Tensor, ops: Ops) -> Tensor:
        hidden = self.linear(hidden, ops)
        if self.activation is None:
            return hidden
        return tanh_rows(hidden) if self.activation == "tanh" else ops.activate(hidden, self.activation)


def tanh_rows(x: Tensor) -> Tensor:
    """Row by row on a CPU: torch computes the end of a whole tensor otherwise than the rest, so a row's bits would
    depend on the others.
    """
    return x.tanh() if x.device.type != "cpu" or not len(x) else torch.stack([row.tanh() for row in x])


def pooling_head(config: ModelConfig, dtype: torch.dtype) -> LabelHead | RewardHead | DenseHead | None:
    """The part in place of a head for next tokens; None: there is none, or that head itself pools."""
    head = None if config.pooler is None else config.pooler.head
    if isinstance(head, DenseLayers):
        return DenseHead(head, dtype)
    if not isinstance(head, Classifier):
        return None
    if head.has_hidden_layer:
        return RewardHead(head.num_labels, config.hidden_size, dtype)
    return LabelHead(head.num_labels, config.hidden_size, dtype, head.has_bias)


_EQUAL_ROWS = 64


def _products(hidden: Tensor, rows: Tensor) -> Tensor:  # [N, H], [K, H] -> [N, K] float32
    """Each row of hidden states is multiplied so that its bits do not depend on the others. For few `rows`.

    A CPU takes 3 us for one row at a time. A GPU takes as long to start any product, so it takes 64 rows, always.
    """
    matrix = rows.float()
    if hidden.device.type == "cpu":
        return torch.stack([matrix @ row for part in hidden.split(256) for row in part.float()])
    num_rows, filling = len(hidden), -len(hidden) % _EQUAL_ROWS
    parts = torch.nn.functional.pad(hidden, (0, 0, 0, filling)).split(_EQUAL_ROWS)
    return torch.cat([part.float() @ matrix.T for part in parts])[:num_rows]


def _rows(matrix: Matrix, token_ids: Tensor, ops: Ops) -> Tensor:
    """The rows `[T, H]` of these tokens."""
    if matrix.layout is None:
        return ops.embedding(token_ids, matrix.weight)
    return ops.quantized_embedding(token_ids, matrix.weight, matrix.layout, matrix.dtype)


def new_embedding(config: ModelConfig, size: int, dtype: torch.dtype) -> Embedding:
    """The embedding. If it is the head, too, it has the head's rows, for any number of workers that share the head."""
    num_shares = 1 if config.share is None or not config.ties_head else config.share.axis.size
    return Embedding(num_shares * num_share_rows(config.vocab_size, num_shares), size, dtype)


def new_head(config: ModelConfig, size: int, dtype: torch.dtype) -> LMHead:
    """The head, or this worker's part of it."""
    axis = ALONE if config.share is None else config.share.axis
    return LMHead(config.vocab_size, size, config.ties_head, dtype, axis)
