"""PoolerConfig: a model's output for a whole sequence, beside or instead of next tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lullm.errors import InvalidRequestError
from lullm.types.arithmetic import Activation
from lullm.types.pooling.params import Pooling, PoolingActivation, PoolingKind, PoolingTask


@dataclass(frozen=True, slots=True)
class Classifier:
    """A matrix `score.weight` `[num_labels, hidden_size]` over the hidden state.

    `has_bias`: `score.bias` is added. `has_hidden_layer`: of reward models; the matrix is `score.2`, and before it come
    a layer `score.0` `[hidden_size, hidden_size]` and ReLU, both with biases.
    """

    num_labels: int
    has_bias: bool = False
    has_hidden_layer: bool = False


@dataclass(frozen=True, slots=True)
class TokenScore:
    """The logit of one token of the vocabulary, less that of another if there is one."""

    true_token_id: int
    false_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A `Dense` module of sentence-transformers: a matrix `[out_features, in_features]`, and an activation.

    Args:
        folder: of its files, in the model's.
        activation: None: none.
    """

    folder: str
    in_features: int
    out_features: int
    has_bias: bool
    activation: Activation | Literal["tanh"] | None


@dataclass(frozen=True, slots=True)
class DenseLayers:
    """Layers behind the pooled hidden state, in order. The result of the last one is the embedding."""

    layers: tuple[DenseLayer, ...]

    @property
    def out_features(self) -> int:
        return self.layers[-1].out_features


PairForm = Literal["joined", "template", "qwen3_reranker", "pair"]
"""How a cross-encoder reads a pair: one text after the other, the model's chat template (roles 'query' and 'document'),
the text that Qwen3-Reranker was trained with, or the special tokens that the tokenizer puts around pairs (encoders).
"""


@dataclass(frozen=True, slots=True)
class PoolerConfig:
    """How a model pools.

    Args:
        head: the step after the pooled hidden state; None: none, it is an embedding. Of `DenseLayers`, too.
        activation: applied unless the request turns it off.
        task: of requests that name none.
        dimensions: the only sizes that embeddings may be cut to; None: any.
        pair_form: how pairs are read; None: a pair's score is the cosine of two embeddings.
        step_tag_id: the token after each step of a solution, whose rows alone are given; None: all rows are.
    """

    task: PoolingTask
    kind: PoolingKind = "last"
    activation: PoolingActivation = "normalize"
    head: Classifier | TokenScore | DenseLayers | None = None
    dimensions: tuple[int, ...] | None = None
    pair_form: PairForm | None = None
    step_tag_id: int | None = None

    @property
    def tasks(self) -> tuple[PoolingTask, ...]:
        """All tasks: what it gives for a whole prompt, it gives for each token, too."""
        return _TASKS[self.task]

    @property
    def gives_embeddings(self) -> bool:
        """Whether its numbers are hidden states, maybe behind layers, and not of labels or tokens."""
        return not isinstance(self.head, Classifier | TokenScore)

    @property
    def can_score(self) -> bool:
        """Whether a pair has one score: of embeddings, or of a head with one number."""
        if self.task == "token_classify":
            return False
        return not isinstance(self.head, Classifier) or self.head.num_labels == 1

    def answer_shape(self, pooling: Pooling, token_ids: Sequence[int], pooled_size: int) -> tuple[int, int]:
        """(rows, columns) of the answer to a prompt; a vector is one row."""
        num_columns = pooling.dimensions or pooled_size
        if not self.gives_embeddings:
            num_columns = self.head.num_labels if isinstance(self.head, Classifier) else 1
        if pooling.kind != "all":
            return 1, num_columns
        tag = pooling.step_tag_id
        return len(token_ids) if tag is None else sum(token_id == tag for token_id in token_ids), num_columns


_TASKS: dict[PoolingTask, tuple[PoolingTask, ...]] = {
    "embed": ("embed", "token_embed"),
    "classify": ("classify", "token_classify"),
    "token_classify": ("token_classify",),
}


def reads_pairs(pooler: PoolerConfig | None) -> bool:
    """Whether the model scores a pair as one prompt; otherwise each text is embedded.

    Raises:
        InvalidRequestError: the model gives several numbers, of labels or of tokens.
    """
    if pooler is None:  # the error comes when a text is to be embedded
        return False
    if pooler.task == "token_classify":
        raise InvalidRequestError("this model labels tokens, and a score is one number; use encode or reward", "task")
    if not pooler.can_score:
        raise InvalidRequestError("this model has several labels, and a score is one number; use classify", "task")
    return pooler.pair_form is not None
