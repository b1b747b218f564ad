"""Scoring: the scores of pairs of texts, by a model that reads both at once, or by the cosine of two embeddings."""

import math
from collections.abc import Sequence
from typing import Any

from lullm.errors import InvalidRequestError
from lullm.types.pooling.outputs import PoolingOutput, PoolingRequestOutput, ScoringOutput, ScoringRequestOutput
from lullm.types.request import Input, TextPair

Vector = PoolingRequestOutput[PoolingOutput]


class Scoring:
    """The prompts of one call for scores, and the scores from their outputs.

    Args:
        data_1, data_2: one text or several on each side: one with one, one with each of several, or in pairs.
        reads_pairs: the model reads a pair as one prompt; otherwise each text is embedded, once.
        instruction: the meaning of "relevant", for models that take one.
        names: of the two sides, for errors.
        template: text of a chat template to use in place of the model's way to join a pair.

    Attributes:
        prompts: to be pooled, in this order.

    Raises:
        InvalidRequestError: no texts, or sides of different lengths.
    """

    def __init__(
        self,
        data_1: Any,
        data_2: Any,
        reads_pairs: bool,
        instruction: str | None = None,
        names: tuple[str, str] = ("data_1", "data_2"),
        template: str | None = None,
    ):
        self._first, self._second = (_texts(data, name) for data, name in zip((data_1, data_2), names, strict=True))
        self._reads_pairs = reads_pairs
        num_first, num_second = len(self._first), len(self._second)
        if num_first not in (1, num_second):
            raise InvalidRequestError(
                f"{num_first} texts in {names[0]} and {num_second} in {names[1]}: give one and several, or pairs",
                names[0],
            )
        if instruction is not None and not isinstance(instruction, str):
            raise InvalidRequestError("instruction must be a string", "instruction")
        if instruction is not None and not reads_pairs:
            raise InvalidRequestError(
                "this model embeds each text by itself; write the instruction into the query", "instruction"
            )
        if template is not None and not reads_pairs:
            raise InvalidRequestError("this model embeds each text by itself, without a template", "chat_template")
        self.prompts: list[Input] = [*self._first, *self._second]
        if reads_pairs:
            self.prompts = [
                TextPair(first, second, instruction, template)
                for first, second in self._pairs(self._first, self._second)
            ]

    def scores(self, outputs: Sequence[Vector]) -> list[ScoringRequestOutput]:
        """One per pair, from the outputs of all prompts."""
        if self._reads_pairs:
            return [output.of(ScoringOutput(output.outputs.data[0])) for output in outputs]
        num_first = len(self._first)
        return [_cosine(first, second) for first, second in self._pairs(outputs[:num_first], outputs[num_first:])]

    def _pairs(self, first: Sequence[Any], second: Sequence[Any]) -> list[tuple[Any, Any]]:
        return list(zip(first if len(first) > 1 else list(first) * len(second), second, strict=True))


def _texts(data: Any, name: str) -> list[str]:
    texts = [data] if isinstance(data, str) else data
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError(f"{name} must be a text or a list of texts, not empty", name)
    return list(texts)


def _cosine(first: Vector, second: Vector) -> ScoringRequestOutput:
    a, b = first.outputs.data, second.outputs.data
    norms = math.hypot(*a) * math.hypot(*b)
    score = math.fsum(map(float.__mul__, a, b)) / norms if norms else 0.0
    return PoolingRequestOutput(
        f"{first.request_id}_{second.request_id}",
        ScoringOutput(score),
        first.prompt_token_ids + second.prompt_token_ids,
        first.num_cached_tokens + second.num_cached_tokens,
        metrics=second.metrics,
    )
