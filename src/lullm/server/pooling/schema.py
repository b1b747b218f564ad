"""The wire forms of requests for vectors: OpenAI's embeddings, vLLM's scores, Jina's and Cohere's reranking."""

from typing import Annotated, Any, Literal

from pydantic import Field

from lullm.server.error import ApiError
from lullm.server.openai.schema import MAX_PROMPTS, Prompts, QueuedBody, several_prompts
from lullm.server.wire import FAIL_FAST, WireModel
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import Prompt

Texts = Annotated[list[str], FAIL_FAST, Field(min_length=1, max_length=MAX_PROMPTS)]


class PoolingBody(QueuedBody):
    """What all have in common. None: not given, the model's default applies."""

    truncate_prompt_tokens: int | None = None
    use_activation: bool | None = None

    def params(self) -> PoolingParams:
        """Raises InvalidRequestError: a value is out of range."""
        return PoolingParams(use_activation=self.use_activation, truncate_prompt_tokens=self.truncate_prompt_tokens)


class EmbeddingBody(PoolingBody):
    """POST /v1/embeddings."""

    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    split_special_tokens: bool | None = None

    def prompts(self) -> list[Prompt]:
        """The texts or token ids, of which a body may hold one or several."""
        return several_prompts(self.input, self.split_special_tokens)

    def params(self) -> PoolingParams:
        """Raises InvalidRequestError: a value is out of range."""
        return PoolingParams(
            dimensions=self.dimensions,
            normalize=self.normalize,
            use_activation=self.use_activation,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            task="embed",
        )


_SIDES = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))


class ScoreBody(PoolingBody):
    """POST /score: two sides under one of vLLM's pairs of names."""

    text_1: str | Texts | None = None
    text_2: str | Texts | None = None
    data_1: str | Texts | None = None
    data_2: str | Texts | None = None
    queries: str | Texts | None = None
    documents: str | Texts | None = None
    items: str | Texts | None = None
    instruction: str | None = None

    def sides(self) -> tuple[tuple[str, str], Any, Any]:
        """(their names, one side, the other). Raises ApiError: it is not one pair."""
        given = {name for names in _SIDES for name in names if getattr(self, name) is not None}
        for names in _SIDES:
            if set(names) == given:
                return names, getattr(self, names[0]), getattr(self, names[1])
        allowed = ", or ".join(" and ".join(names) for names in _SIDES)
        raise ApiError(400, f"send two sides: {allowed}", param="text_1", code="missing_field")


class RerankDocument(WireModel):
    text: str


class RerankBody(PoolingBody):
    """POST /rerank."""

    query: str
    documents: Annotated[list[str | RerankDocument], FAIL_FAST, Field(min_length=1, max_length=MAX_PROMPTS)]
    top_n: int | None = None
    return_documents: bool | None = None
    instruction: str | None = None

    @property
    def texts(self) -> list[str]:
        return [document if isinstance(document, str) else document.text for document in self.documents]

    @property
    def num_results(self) -> int:
        """Raises ApiError: `top_n` is out of range. 0 means all, as vLLM's clients send it."""
        if self.top_n is not None and self.top_n < 0:
            raise ApiError(400, f"top_n must be at least 0, not {self.top_n}", param="top_n", code="invalid_value")
        return min(self.top_n or len(self.documents), len(self.documents))
