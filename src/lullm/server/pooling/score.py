"""POST /score and POST /rerank: scores of pairs of texts, as a list or as a ranking."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from lullm.config.pooling.pooler import reads_pairs
from lullm.server.context import ServerContext
from lullm.server.openai.generation import public_id
from lullm.server.pooling.schema import PoolingBody, RerankBody, ScoreBody
from lullm.server.pooling.vectors import Vectors, fields_named
from lullm.types.pooling.score import Scoring


@dataclass(frozen=True, slots=True)
class Scores:
    """The handlers."""

    context: ServerContext

    async def score(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError: with the name of the body's field."""
        body = await self.context.read(ScoreBody, request)
        names, first, second = body.sides()
        vectors, scores = await self._scores(request, body, names, first, second, body.instruction)
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        return JSONResponse({**vectors.head(), "data": data, "usage": vectors.usage()})

    async def rerank(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError: with the name of the body's field."""
        body = await self.context.read(RerankBody, request)
        num_results, texts = body.num_results, body.texts
        names = ("query", "documents")
        vectors, scores = await self._scores(request, body, names, body.query, texts, body.instruction)
        ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[:num_results]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in ranked]
        if body.return_documents is not False:
            results = [{**result, "document": {"text": texts[result["index"]]}} for result in results]
        head = vectors.head()
        return JSONResponse({"id": head["id"], "model": head["model"], "usage": vectors.usage(), "results": results})

    async def _scores(
        self,
        request: Request,
        body: PoolingBody,
        names: tuple[str, str],
        first: str | Sequence[str],
        second: str | Sequence[str],
        instruction: str | None,
    ) -> tuple[Vectors, list[float]]:
        context = self.context.of(body.model)
        scoring = Scoring(first, second, reads_pairs(context.engine.model_config.pooler), instruction, names)
        answer_id = public_id("score" if isinstance(body, ScoreBody) else "rerank", request.headers)
        with fields_named(prompt=names[1], query=names[0], document=names[1]):
            vectors = await Vectors.prepare(context, body, answer_id, scoring.prompts, body.params(), body.model)
        outputs = await vectors.answered(request, vectors.all())
        return vectors, [output.outputs.score for output in scoring.scores(outputs)]
