"""The OpenAPI document (3.1) of an application: every route, and the body that it takes."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute, Route

import lullm
from lullm.server import admin_schema
from lullm.server.llama_cpp.schema import ApplyTemplateBody
from lullm.server.ollama.route import NamedBody
from lullm.server.openai.schema import DetokenizeBody, TokenizeBody
from lullm.server.pooling.schema import ClassifyBody, EmbeddingBody, RerankBody, RowsBody, ScoreBody
from lullm.server.wire import WireModel

BODIES: dict[str, type[WireModel]] = {
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/apply-template": ApplyTemplateBody,
    "/api/show": NamedBody,
    "/v1/embeddings": EmbeddingBody,
    "/pooling": RowsBody,
    "/classify": ClassifyBody,
    **dict.fromkeys(("/score", "/v1/score"), ScoreBody),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"), RerankBody),
    "/sleep": admin_schema.SleepBody,
    **dict.fromkeys(("/wake_up", "/release_memory_occupation", "/resume_memory_occupation"), admin_schema.TagsBody),
    "/pause": admin_schema.PauseBody,
    **dict.fromkeys(("/resume", "/reset_prefix_cache"), admin_schema.EmptyBody),
    "/collective_rpc": admin_schema.RemoteCallBody,
    **dict.fromkeys(("/models/load", "/models/unload"), admin_schema.ModelBody),
}
"""The bodies of routes whose handler has no `body_type`."""
ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


def body_of(route: Route) -> type[WireModel] | None:
    """The model of the body that a route takes; None: it takes none."""
    kind: type[WireModel] | None = getattr(route.endpoint, "body_type", None) or BODIES.get(route.path)
    return kind


def document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The document of these routes."""
    found = [route for route in routes if isinstance(route, Route)]
    kinds = list(dict.fromkeys(kind for route in found if (kind := body_of(route)) is not None))
    names, schemas = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for route in found:
        methods = paths.setdefault(_PARAMETER.sub(r"{\1}", route.path), {})
        for method in sorted((route.methods or set()) - {"HEAD"}):
            kind = body_of(route) if method == "POST" else None
            methods[method.lower()] = _operation(route, method, None if kind is None else names[kind, "validation"])
    return {
        "openapi": "3.1.0",
        "info": {"title": "lullm", "version": lullm.__version__},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, method: str, body: dict[str, Any] | None) -> dict[str, Any]:
    failed = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', route.path)}",
        "responses": {
            "200": {"description": "The answer."},
            "4XX": {"description": "The request is refused.", "content": failed},
            "5XX": {"description": "The server or the engine cannot answer.", "content": failed},
        },
    }
    if names := _PARAMETER.findall(route.path):
        schema = {"type": "string"}
        operation["parameters"] = [{"name": n, "in": "path", "required": True, "schema": schema} for n in names]
    if body is not None:
        kind = getattr(route.endpoint, "media_type", "application/json")
        operation["requestBody"] = {"required": True, "content": {kind: {"schema": body}}}
    return operation
