"""The routes for vectors, under the names of OpenAI, vLLM, Jina, Cohere and llama.cpp."""

from fastapi import APIRouter

from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.pooling.classes import Classes
from lullm.server.pooling.embedding import Embeddings
from lullm.server.pooling.rows import Rows
from lullm.server.pooling.score import Scores

_RERANK = ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking")


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    scores = Scores(context)
    return routed(
        ("POST", "/v1/embeddings", Embeddings(context)),
        ("POST", "/pooling", Rows(context)),
        ("POST", "/classify", Classes(context)),
        *(("POST", path, scores.score) for path in ("/score", "/v1/score")),
        *(("POST", path, scores.rerank) for path in _RERANK),
    )
