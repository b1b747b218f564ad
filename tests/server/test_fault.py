"""Clients that leave, engines that die, servers that stop: nothing hangs, nothing is lost silently."""

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from lullm.server import context, http_server
from lullm.server.app import build_app
from lullm.server.openai import endpoint
from lullm.server.options import ServerOptions


def send_raw(server, path: str, body: dict) -> socket.socket:
    data = json.dumps(body).encode()
    sock = socket.create_connection(server.address, timeout=10)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    sock.sendall(head.encode() + data)
    return sock


def until(condition, timeout_s: float = 5) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hold", "max_tokens": 9}),
        ("/v1/completions", {"prompt": ["hold", "hold"], "max_tokens": 9}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hold"}]}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_aborts_the_request(start, scripted, path, body, stream):
    engine = scripted()
    server = start(engine)
    num_requests = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    sock = send_raw(server, path, body | {"stream": stream})
    engine.wait_held(num_requests)
    assert engine.aborted == []
    sock.close()
    until(lambda: len(engine.aborted) == num_requests)
    assert engine.ended == []


def test_disconnect_in_the_middle_of_the_body(start, scripted):
    server = start(scripted())
    with socket.create_connection(server.address, timeout=5) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    with server.http() as http:
        assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
    assert len(server.engine.seen) == 1


@pytest.mark.parametrize("prompt", ["crash", ["crash", "fine"]])
def test_engine_that_dies_during_a_request(start, scripted, prompt):
    with start(scripted()).openai() as client, pytest.raises(openai.InternalServerError) as info:
        client.completions.create(model="scripted", prompt=prompt, max_tokens=9)
    assert info.value.status_code == 500 and info.value.code == "engine_failed"


@pytest.mark.parametrize("prompt", ["crash", ["crash", "fine"]])
def test_engine_that_dies_during_a_stream(start, scripted, read_events, prompt):
    server = start(scripted())
    body = {"prompt": prompt, "max_tokens": 9, "stream": True}
    with server.http() as http, http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        *chunks, last = read_events(response)
    assert chunks and all("choices" in chunk for chunk in chunks)
    assert last["error"]["code"] == "engine_failed"


def test_official_client_sees_the_error_of_a_stream(start, scripted):
    with start(scripted()).openai() as client, pytest.raises(openai.APIError, match="engine failed"):
        for _ in client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "crash"}], stream=True
        ):
            pass


def test_a_bug_is_an_envelope_too(start, scripted, caplog):
    engine = scripted()
    engine.tokenizer.encode = None
    with start(engine).http() as http:
        response = http.post("/v1/completions", json={"prompt": "x"})
    assert response.status_code == 500 and response.json()["error"]["code"] == "internal_error"
    assert "NoneType" not in response.text and caplog.text.count("Traceback") == 1


def test_drain_lets_running_requests_end_and_refuses_new_ones(start, scripted):
    engine = scripted()
    server = start(engine)
    body = {"prompt": "hold", "max_tokens": 9}
    with server.http() as http, ThreadPoolExecutor(2) as pool:
        whole = pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=20)
        streamed = pool.submit(httpx.post, f"{server.url}/v1/completions", json=body | {"stream": True}, timeout=20)
        engine.wait_held(2)
        server.signal()
        until(lambda: http.get("/health").status_code == 503)
        refused = http.post("/v1/completions", json=body)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
        assert http.get("/metrics").status_code == 200
        assert not engine.shutdowns
        engine.released.set()
        assert whole.result().json()["choices"][0]["text"] == "0:the qui"
        assert streamed.result().text.endswith("data: [DONE]\n\n")
    server.join()
    assert engine.shutdowns and len(engine.ended) == 2 and not engine.aborted


@pytest.mark.parametrize("how", ["timeout", "second signal"])
def test_drain_is_bounded(start, scripted, how):
    engine = scripted()
    server = start(engine, drain_timeout_s=0.1 if how == "timeout" else 60)
    body = {"prompt": "hold", "max_tokens": 9}
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=20)
        streamed = pool.submit(httpx.post, f"{server.url}/v1/completions", json=body | {"stream": True}, timeout=20)
        engine.wait_held(2)
        server.signal()
        if how == "second signal":
            server.signal()
        server.join()
        assert whole.result().status_code == 503 and whole.result().json()["error"]["code"] == "shutting_down"
        assert streamed.result().status_code == 200
        assert '"code":"shutting_down"' in streamed.result().text and "[DONE]" not in streamed.result().text


def test_client_that_never_reads_does_not_hold_the_end_up(start, scripted):
    engine = scripted(script="x" * 400, max_num_seqs=1000)
    server = start(engine, drain_timeout_s=0.1)
    body = {"prompt": "x", "n": 1000, "max_tokens": 400, "stream": True}
    num_steps = -1
    with send_raw(server, "/v1/completions", body):
        while engine.num_steps != num_steps or num_steps == 0:  # until the socket's buffers are full
            num_steps = engine.num_steps
            time.sleep(0.2)
        assert num_steps < 400
        server.signal()
        server.join()
    assert engine.ended == []


@pytest.mark.parametrize("host", ["localhost", "a name that is refused"])
def test_half_a_body_does_not_end_in_a_traceback(start, scripted, caplog, host):
    """uvicorn cancels what still runs at the end, and logs each such request as an exception of the application."""
    server = start(scripted(), drain_timeout_s=0.1)
    with socket.create_connection(server.address, timeout=10) as sock:
        sock.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n{{".encode())
        with server.http() as http:  # which is answered behind the first request's head
            assert http.get("/health").status_code == 200
        server.signal()
        server.join()
        assert sock.recv(1000) == b"" or host != "localhost"
    assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]


def test_the_event_loop_goes_on_between_the_prompts_of_a_batch(scripted, monkeypatch):
    engine, turns, seen = scripted(), [0], []
    prepare = engine.prepare

    async def recorded(*args):
        seen.append(turns[0])
        return await prepare(*args)

    monkeypatch.setattr(engine, "prepare", recorded)

    async def others():
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def main():
        task = asyncio.create_task(others())
        transport = httpx.ASGITransport(app=build_app(engine, ServerOptions()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            body = {"prompt": ["a"] * 20, "max_tokens": 1}
            assert (await http.post("/v1/completions", json=body)).status_code == 200
        task.cancel()

    asyncio.run(main())
    assert len(seen) == 20 == len(set(seen)), "other tasks have run between any two"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
@pytest.mark.parametrize("is_long", [False, True])
def test_long_bodies_are_read_on_a_thread(start, scripted, monkeypatch, path, is_long):
    """8 MiB of short parts took the event loop, and with it all streams, 2.7 s."""
    places = {}
    for module, name in ((context, "parse_body"), (endpoint, "sampling_params")):
        call = getattr(module, name)

        def placed(*args, call=call, name=name):
            places[name] = threading.current_thread().name
            return call(*args)

        monkeypatch.setattr(module, name, placed)
    filler = {"metadata": {"user_id": "x" * (1 << 16 if is_long else 10)}}
    prompts = {"/v1/completions": {"prompt": "a"}, "/v1/messages": {"messages": [{"role": "user", "content": "a"}]}}
    body = {"model": "scripted", "max_tokens": 1} | prompts[path] | filler
    with start(scripted()).http() as http:
        answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert set(places) == {"parse_body", "sampling_params"}
    assert all(name.startswith("asyncio_") == is_long for name in places.values()), places


def test_two_hundred_streams_at_once(start, scripted):
    engine = scripted(script="some longer text that takes thirty steps")
    server = start(engine)
    num_streams = 200
    line = threading.Barrier(20)

    def stream(number: int) -> str:
        if number < 20:
            line.wait(10)
        body = {"prompt": f"prompt {number}", "max_tokens": 30, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as response:
            events = [json.loads(row[6:]) for row in response.iter_lines() if row.startswith("data: {")]
        return "".join(event["choices"][0]["text"] for event in events)

    limits = httpx.Limits(max_connections=num_streams)
    with httpx.Client(base_url=server.url, timeout=30, limits=limits) as http, ThreadPoolExecutor(num_streams) as pool:
        texts = list(pool.map(stream, range(num_streams)))
    assert set(texts) == {"0:some longer text that takes thirty steps"[:30]}
    assert len(engine.ended) == num_streams and not engine.aborted


def test_idle_connections_outlive_those_of_clients(start, scripted, monkeypatch):
    # Where both ends give up at the same time, one may send while the other closes.
    assert httpx.Limits().keepalive_expiry < http_server.KEEP_ALIVE_S
    monkeypatch.setattr(http_server, "KEEP_ALIVE_S", 0)
    with socket.create_connection(start(scripted()).address, timeout=3) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while sock.recv(4096):
            pass


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_cannot_go_on_is_not_asleep(start, scripted, monkeypatch, stream):
    engine = scripted(enable_sleep_mode=True)
    make_output = engine._output

    def stuck_output(*args):
        output = make_output(*args)
        for completion in output.outputs:
            completion.finish_reason, completion.stop_reason = "abort", "no token can be drawn"
        return output

    monkeypatch.setattr(engine, "_output", stuck_output)
    with start(engine).http() as http:
        answer = http.post("/v1/completions", json={"prompt": "x", "stream": stream})
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "request_failed"
    assert "engine failed" not in answer.text
    assert "no token can be drawn" in answer.json()["error"]["message"]
