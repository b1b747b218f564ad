"""PoolerConfig: a model's output for a whole sequence, beside or instead of next tokens."""

from dataclasses import dataclass
from typing import Literal

from lullm.errors import InvalidRequestError
from lullm.types.pooling.params import PoolingActivation, PoolingKind, PoolingTask


@dataclass(frozen=True, slots=True)
class Classifier:
    """A matrix `score.weight` `[num_labels, hidden_size]` over the hidden state."""

    num_labels: int


@dataclass(frozen=True, slots=True)
class TokenScore:
    """The logit of one token of the vocabulary, less that of another if there is one."""

    true_token_id: int
    false_token_id: int | None = None


PairForm = Literal["joined", "template", "qwen3_reranker", "pair"]
"""How a cross-encoder reads a pair: one text after the other, the model's chat template (roles 'query' and 'document'),
the text that Qwen3-Reranker was trained with, or the special tokens that the tokenizer puts around pairs (encoders).
"""


@dataclass(frozen=True, slots=True)
class PoolerConfig:
    """How a model pools.

    Args:
        head: the step after the pooled hidden state; None: none, it is an embedding.
        activation: applied unless the request turns it off.
        dimensions: the only sizes that embeddings may be cut to; None: any.
        pair_form: how pairs are read; None: a pair's score is the cosine of two embeddings.
    """

    task: PoolingTask
    kind: PoolingKind = "last"
    activation: PoolingActivation = "normalize"
    head: Classifier | TokenScore | None = None
    dimensions: tuple[int, ...] | None = None
    pair_form: PairForm | None = None

    @property
    def can_score(self) -> bool:
        """Whether a pair has one score: of embeddings, or of a head with one number."""
        return not isinstance(self.head, Classifier) or self.head.num_labels == 1


def reads_pairs(pooler: PoolerConfig | None) -> bool:
    """Whether the model scores a pair as one prompt; otherwise each text is embedded.

    Raises:
        InvalidRequestError: the model gives a number for each of several labels.
    """
    if pooler is None:  # the error comes when a text is to be embedded
        return False
    if not pooler.can_score:
        raise InvalidRequestError("this model has several labels, and a score is one number; use classify", "task")
    return pooler.pair_form is not None
