"""Bad input: the right code, the one envelope, and a server that goes on serving."""

import socket

import httpx
import pytest


def assert_envelope(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"error"} and body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert body["error"]["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    return body["error"]


@pytest.fixture(autouse=True)
def goes_on_serving(http):
    yield
    assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).json()["choices"][0]["text"] == "0:"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\x00\xff"])
def test_not_json(http, path, raw):
    assert_envelope(http.post(path, content=raw), 400)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 1_000_000}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 99}, "prompt_logprobs"),
        ({"beam_width": 2, "stream": True}, "beam_width"),
        ({"beam_width": 2, "n": 2, "stream": True}, "beam_width"),
        ({"stop_token_ids": [257]}, "stop_token_ids"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": "x" * 600}, "prompt"),
        ({"prompt": [1] * 512}, "prompt"),
        ({"prompt": [100_000]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["fine", ""]}, "prompt"),
        ({"stop": "s" * 1_000_000}, "stop"),
        ({"stop": ["stop"] * 150_000}, "stop"),
        ({"stop": [7] * 1_000_000}, "stop"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x"}}}},
            "response_format",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "beam_width": 2}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "guided_json": {}}, "guided_json"),
        ({"guided_regex": "["}, "guided_regex"),
        ({"guided_grammar": ""}, "guided_grammar"),
        ({"guided_json": ""}, "guided_json"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logit_bias": {"999999": 1}, "stream": True}, "logit_bias"),
        ({"prompt": ["a", "b"], "logit_bias": {"999999": 1}, "stream": True}, "logit_bias"),
    ],
)
def test_bad_field(http, fields, param):
    assert assert_envelope(http.post("/v1/completions", json={"prompt": "x"} | fields), 400)["param"] == param


def test_codes(http):
    long = "x" * 600
    for path, body in (
        ("/v1/completions", {"prompt": long}),
        ("/v1/completions", {"prompt": ["fine", long], "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}),
    ):
        assert assert_envelope(http.post(path, json=body), 400)["code"] == "context_length_exceeded"
    for fields in ({"prompt": ""}, {"prompt": [-1]}, {"n": 0}):
        assert assert_envelope(http.post("/v1/completions", json={"prompt": "x"} | fields), 400)["code"] is None


def test_chat_fields(http):
    good = {"messages": [{"role": "user", "content": "x"}]}
    for fields, param in (
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21, "stream": True}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ):
        assert assert_envelope(http.post("/v1/chat/completions", json=good | fields), 400)["param"] == param


def test_unknown_model(http):
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
    ):
        error = assert_envelope(http.post(path, json=body | {"model": "gpt-9"}), 404)
        assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert_envelope(http.get("/v1/models/gpt/9"), 404)


def test_unknown_route_and_method(http):
    assert_envelope(http.get("/v2/completions"), 404)
    assert_envelope(http.post("/nowhere", json={}), 404)
    response = http.get("/v1/completions")
    assert_envelope(response, 405)
    assert response.headers["allow"] == "POST"
    assert_envelope(http.delete("/v1/models"), 405)


def test_body_over_the_limit(http, server):
    body = b'{"prompt": "' + b"x" * server.options.max_body_bytes + b'"}'
    assert assert_envelope(http.post("/v1/completions", content=body), 413)["code"] == "body_too_large"


def test_body_over_the_limit_without_a_length(http, server):
    def pieces():
        for _ in range(server.options.max_body_bytes // 65536 + 2):
            yield b" " * 65536

    response = http.post("/v1/completions", content=pieces())
    assert "content-length" not in response.request.headers
    assert_envelope(response, 413)


@pytest.mark.parametrize("path", ["/v1/completions", "/nowhere"])
@pytest.mark.parametrize("head", [b"Content-Length: %d" % (9 << 20), b"Transfer-Encoding: chunked"])
def test_a_refusal_is_not_lost_in_a_reset(server, path, head):
    """A client that sends its whole body first, and asks for the connection to be closed."""
    body = b"x" * (9 << 20)
    if b"chunked" in head:
        body = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    with socket.create_connection(server.address, timeout=20) as sock:
        sock.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode() + head + b"\r\n\r\n")
        sock.sendall(body)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 " if head.startswith(b"Content") or "v1" in path else b"HTTP/1.1 404 ")


def test_a_client_that_asks_first_sends_no_body(server):
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 99000000\r\n\r\n"
    with socket.create_connection(server.address, timeout=4) as sock:
        sock.sendall(head)
        assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_bytes_that_are_no_http(http, server):
    import socket

    with socket.create_connection(server.address, timeout=5) as sock:
        sock.sendall(b"nonsense\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 400")
