"""The routes for vectors, under the names of OpenAI, vLLM, Jina and Cohere."""

from fastapi import APIRouter

from lullm.server.context import ServerContext
from lullm.server.pooling.embedding import Embeddings
from lullm.server.pooling.score import Scores


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    routes, scores = APIRouter(), Scores(context)
    routes.add_api_route("/v1/embeddings", Embeddings(context), methods=["POST"])
    for path in ("/score", "/v1/score"):
        routes.add_api_route(path, scores.score, methods=["POST"])
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        routes.add_api_route(path, scores.rerank, methods=["POST"])
    return routes
