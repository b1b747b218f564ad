"""/openapi.json and /docs: every route, every field, nothing from outside."""

import re

import pytest
from fastapi.routing import APIRoute as Route

from lullm.server import admin, route
from lullm.server.anthropic import route as anthropic
from lullm.server.context import ServerContext
from lullm.server.llama_cpp import route as llama_cpp
from lullm.server.ollama import route as ollama
from lullm.server.openai import route as openai
from lullm.server.openai.responses import route as responses
from lullm.server.openai.schema import ChatBody, CompletionBody
from lullm.server.options import ServerOptions
from lullm.server.pooling import route as pooling
from lullm.server.reference.openapi import body_of, document

NO_BODY = {
    *("/ping", "/v1/responses/{response_id}/cancel", "/v1/responses/{rest:path}"),
    *("/api/copy", "/api/create", "/api/pull", "/api/push", "/api/blobs/{digest}"),  # refused, whatever they say
}


@pytest.fixture(scope="module")
def routes(scripted):
    context = ServerContext(scripted(enable_sleep_mode=True), ServerOptions())
    parts = (openai, responses, anthropic, ollama, llama_cpp, pooling, route, admin)
    return [each for part in parts for each in part.router(context).routes]


def test_every_route_that_takes_a_body_says_which(routes):
    posts = [route for route in routes if isinstance(route, Route) and "POST" in route.methods]
    assert len(posts) > 20
    assert {route.path for route in posts if body_of(route) is None} == NO_BODY


def test_every_field_stands_in_the_document(routes):
    found = document(routes)
    for path, kind in (("/v1/completions", CompletionBody), ("/v1/chat/completions", ChatBody)):
        body = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        schema = found["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        assert set(schema["properties"]) == {field.alias or name for name, field in kind.model_fields.items()}
    assert "/v1/models/{name}" in found["paths"] and "/sleep" in found["paths"]


def test_every_reference_has_its_schema(routes):
    found = document(routes)
    names = set(re.findall(r"#/components/schemas/([^'\"]+)", str(found)))
    assert names <= set(found["components"]["schemas"])


def test_over_http(http):
    found = http.get("/openapi.json").json()
    assert found["openapi"] == "3.1.0" and "/sleep" not in found["paths"], "what does not exist is not told"
    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html") and "default-src 'none'" in str(page.headers)
    assert "<code>POST /v1/chat/completions</code>" in page.text and "stream_options" in page.text
    assert "<script" not in page.text and not re.search(r"(src|href)=\"(?!openapi.json\")", page.text)
