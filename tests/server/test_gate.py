"""API keys and origins."""

import openai
import pytest


def test_api_key(start, scripted):
    server = start(scripted(), api_keys=("secret", "other"))
    with server.http() as http:
        assert http.get("/health").status_code == 200
        for path in ("/v1/models", "/metrics", "/version", "/nowhere"):
            response = http.get(path)
            assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        for value in ("secret", "Bearer", "Bearer wrong", "Basic secret", "Bearer sécret".encode("latin-1")):
            assert http.post("/v1/completions", json={}, headers={"Authorization": value}).status_code == 401
    for key in ("secret", "other"):
        with server.openai(key) as client:
            assert client.completions.create(model="scripted", prompt="x", max_tokens=2).choices[0].text == "0:"
    with server.openai("wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_no_cross_origin_by_default(http):
    response = http.get("/health", headers={"Origin": "http://page"})
    assert "access-control-allow-origin" not in response.headers


def test_allowed_origin_needs_no_key_for_the_preflight(start, scripted):
    server = start(scripted(), allowed_origins=("http://page",), api_keys=("secret",))
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with server.http() as http:
        response = http.options("/v1/completions", headers={"Origin": "http://page"} | asks)
        assert response.status_code == 200 and response.headers["access-control-allow-origin"] == "http://page"
        assert http.options("/v1/completions", headers={"Origin": "http://else"} | asks).status_code == 400
        refused = http.post("/v1/completions", json={}, headers={"Origin": "http://page"})
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "http://page"


def test_head_is_get_without_the_body(http):
    got, head = http.get("/health"), http.head("/health")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(got.content))
    assert http.head("/v1/completions").status_code == 405


def test_an_encoded_body_is_named(http):
    answer = http.post("/v1/completions", content=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 415 and "gzip" in answer.json()["error"]["message"]
    body = {"prompt": "x", "max_tokens": 1}
    assert http.post("/v1/completions", json=body, headers={"Content-Encoding": "identity"}).status_code == 200


def status(http, path="/v1/completions", method="POST", **headers):
    body = {"prompt": "x", "max_tokens": 1} if method == "POST" else None
    response = http.request(method, path, json=body, headers=headers)
    return response.status_code, None if response.status_code == 200 else response.json()["error"]["code"]


ROUTES = [("/v1/completions", "POST"), ("/metrics", "GET"), ("/v1/models", "GET"), ("/health", "GET")]


@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_a_rebound_name_reads_nothing(http, path, method):
    assert status(http, path, method, host="evil.example:8000") == (403, "foreign_host")
    assert status(http, path, method, host="evil.example:8000", origin="http://evil.example:8000")[0] == 403
    assert status(http, path, method, host="localhost:1") == (200, None)


@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_a_foreign_page_is_refused_everywhere(http, path, method):
    assert status(http, path, method, origin="http://page") == (403, "foreign_origin")


def test_a_page_cannot_send_the_engine_to_sleep_by_a_simple_post(start, scripted):
    engine = scripted()
    body = b'{"prompt": "x", "max_tokens": 1, "keep_alive": 0}'
    with start(engine).http() as http:
        headers = {"Origin": "http://page", "Content-Type": "text/plain"}
        assert http.post("/v1/completions", content=body, headers=headers).status_code == 403
    assert engine.seen == [] and engine.keep_alives == []


def test_hosts_and_origins_that_are_allowed(start, scripted):
    options = {"allowed_hosts": ("llm.example",), "allowed_origins": ("http://page",)}
    with start(scripted(), **options).http() as http:
        assert status(http, host="LLM.example.:80") == (200, None)
        assert status(http, host="other.example") == (403, "foreign_host")
        assert status(http, origin="http://page") == (200, None)
        assert status(http, host="other.example", origin="http://page") == (403, "foreign_host")
    with start(scripted(), allowed_hosts=("*",), allowed_origins=("*",)).http() as http:
        assert status(http, host="other.example", origin="http://page") == (200, None)


def test_a_key_opens_under_every_name(start, scripted):
    with start(scripted(), api_keys=("secret",)).http(authorization="Bearer secret") as http:
        assert status(http, host="llm.example", origin="http://page") == (200, None)
        assert status(http, "/health", "GET", host="llm.example", authorization="") == (200, None)
        assert status(http, host="llm.example", authorization="") == (401, "invalid_api_key")
