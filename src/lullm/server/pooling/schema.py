"""The wire forms of requests for vectors: OpenAI's embeddings, vLLM's scores, Jina's and Cohere's reranking."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from lullm.server.error import ApiError
from lullm.server.openai.schema import MAX_PROMPTS, Prompts, QueuedBody, several_prompts
from lullm.server.wire import FAIL_FAST, WireModel
from lullm.types.pooling.params import PoolingParams, TextTask
from lullm.types.request import Prompt


def _check_texts(value: Any) -> Any:
    if isinstance(value, str) or value is None:
        return value
    if not isinstance(value, list) or set(map(type, value)) != {str}:
        raise ValueError("must be a string or a list of strings, not empty")
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"at most {MAX_PROMPTS} texts may stand in one request, got {len(value)}")
    return value


Texts = Annotated[Any, AfterValidator(_check_texts)]
"""One text or several; a union of types would be named by its classes in errors."""


class PoolingBody(QueuedBody):
    """The common fields. None: not given, so the model's default applies."""

    truncate_prompt_tokens: int | None = None
    use_activation: bool | None = None

    def params(self) -> PoolingParams:
        """Raises InvalidRequestError: a value is out of range."""
        return PoolingParams(use_activation=self.use_activation, truncate_prompt_tokens=self.truncate_prompt_tokens)


class InputBody(PoolingBody):
    """Fields of requests for numbers of inputs."""

    missing: ClassVar = {"messages": (None, [])}

    input: Prompts
    split_special_tokens: bool | None = None
    add_special_tokens: bool | None = None

    def prompts(self) -> list[Prompt]:
        """The texts or token ids; a body may hold one or several."""
        return several_prompts(self.input, self.split_special_tokens, add_special_tokens=self.add_special_tokens)


class ClassifyBody(InputBody):
    """POST /classify."""

    def params(self) -> PoolingParams:
        return super().params().expecting("classify")


class VectorBody(InputBody):
    """Fields of requests for vectors of inputs."""

    missing: ClassVar = {
        **InputBody.missing,
        "embed_dtype": (None, "float32"),
        "endianness": (None, "native", "little"),
    }

    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None

    def params(self) -> PoolingParams:
        """Raises InvalidRequestError: a value is out of range."""
        return replace(super().params(), dimensions=self.dimensions, normalize=self.normalize)


class EmbeddingBody(VectorBody):
    """POST /v1/embeddings."""

    def params(self) -> PoolingParams:
        return super().params().expecting("embed")


class RowsBody(VectorBody):
    """POST /pooling. `task`: None: the model's."""

    missing: ClassVar = {**VectorBody.missing, "data": (None,)}

    task: TextTask | None = None
    step_tag_id: int | None = None

    def params(self) -> PoolingParams:
        return replace(super().params(), step_tag_id=self.step_tag_id).expecting(self.task)


_SIDES = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))


class ScoreBody(PoolingBody):
    """POST /score: two sides under one of vLLM's pairs of names."""

    text_1: Texts = None
    text_2: Texts = None
    data_1: Texts = None
    data_2: Texts = None
    queries: Texts = None
    documents: Texts = None
    items: Texts = None
    instruction: str | None = None

    def sides(self) -> tuple[tuple[str, str], Any, Any]:
        """(their names, one side, the other). Raises ApiError: not exactly one pair of names."""
        given = {name for names in _SIDES for name in names if getattr(self, name) is not None}
        for names in _SIDES:
            if set(names) == given:
                return names, getattr(self, names[0]), getattr(self, names[1])
        allowed = ", or ".join(" and ".join(names) for names in _SIDES)
        raise ApiError(400, f"send two sides: {allowed}", param="text_1", code="missing_field")


class RerankDocument(WireModel):
    """An object with a text, or the text itself."""

    missing: ClassVar = {"image": (None,)}

    text: str

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, data: Any) -> Any:
        if not isinstance(data, str | dict):
            raise ValueError("must be a string, or an object with text")
        return {"text": data} if isinstance(data, str) else data


class RerankBody(PoolingBody):
    """POST /rerank."""

    query: str
    documents: Annotated[list[RerankDocument], FAIL_FAST, Field(min_length=1, max_length=MAX_PROMPTS)]
    top_n: int | None = None
    return_documents: bool | None = None
    instruction: str | None = None

    @property
    def texts(self) -> list[str]:
        return [document.text for document in self.documents]

    @property
    def num_results(self) -> int:
        """Raises ApiError: `top_n` is out of range. 0 means all, as vLLM's clients send it."""
        if self.top_n is not None and self.top_n < 0:
            raise ApiError(400, f"top_n must be at least 0, not {self.top_n}", param="top_n", code="invalid_value")
        return min(self.top_n or len(self.documents), len(self.documents))
