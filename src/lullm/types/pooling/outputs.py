"""Outputs of a pooling request, under vLLM's names."""

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from lullm.types.outputs import RequestMetrics, RequestOutput

Output = TypeVar("Output")


@dataclass(frozen=True, slots=True, eq=False)
class PoolingOutput:
    """`data`: the vector of an embedding, the numbers of the labels, or one score: a list of floats.

    Of the tasks 'token_embed' and 'token_classify': one row per token, `[T, K]` float32; an array of numpy, and from
    `LLM` a tensor of torch over the same memory. An aborted request has an empty list.
    """

    data: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PoolingOutput):
            return NotImplemented
        shapes = [getattr(one.data, "shape", None) for one in (self, other)]
        if shapes[0] != shapes[1]:
            return False
        is_equal = self.data == other.data
        return is_equal if shapes[0] is None else bool(is_equal.all())

    __hash__ = None  # type: ignore[assignment]  # lists have none either


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """`embedding`: hidden_size elements, or as many as `dimensions` asks for."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class ClassificationOutput:
    """`probs`: one number per label; probabilities, unless the activation was turned off."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """`score`: of a pair. A reranker's is mostly between 0 and 1, that of embeddings is their cosine."""

    score: float


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Output]):
    """The one output of a pooling request. `finish_reason` is 'stop', or 'abort', which comes without data.

    `num_cached_tokens`: prompt tokens whose KV came from the prefix cache. `stop_reason`: the reason of an abort that
    the request itself caused.
    """

    request_id: str
    outputs: Output
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    metrics: RequestMetrics | None = None

    def of(self, outputs: "Output2") -> "PoolingRequestOutput[Output2]":
        """The same request with its outputs in another form."""
        same: Any = self
        return replace(same, outputs=outputs)


Output2 = TypeVar("Output2")

EmbeddingRequestOutput = PoolingRequestOutput[EmbeddingOutput]
ClassificationRequestOutput = PoolingRequestOutput[ClassificationOutput]
ScoringRequestOutput = PoolingRequestOutput[ScoringOutput]

EngineOutput = RequestOutput | PoolingRequestOutput[PoolingOutput]
"""An engine's output for a request of either kind."""
