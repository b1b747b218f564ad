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
