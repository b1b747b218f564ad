"""What the log says of requests: a line each with ids, tokens and times; prompts only if the server was told to."""

import logging
import re

import pytest

from lullm.errors import ConfigError
from lullm.server.options import ServerOptions

LOGGER = "lullm.server.gate.request_log"
SECRET = "my secret diary"


@pytest.fixture
def told(caplog):
    """The lines at level 'info'."""
    caplog.set_level(logging.INFO, LOGGER)
    return lambda: [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_a_line_for_each_request(start, scripted, told):
    server = start(scripted())
    with server.http() as http:
        body = {"prompt": SECRET, "max_tokens": 4}
        answer = http.post("/v1/completions", json=body, headers={"X-Request-Id": "mine-7"}).json()
        with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
            list(response.iter_lines())
        http.post("/v1/completions", json={"prompt": SECRET, "max_tokens": 0})
        http.post("/no%0Aline%1B", json={})
        http.get("/health")
    server.stop()
    whole, streamed, refused, lost = told()
    num_prompt = answer["usage"]["prompt_tokens"]
    pattern = (
        r"cmpl-{} 127\.0\.0\.1 POST /v1/completions 200: {} \+ 4 tokens, \d\.\d+ s queued, "
        r"first token after \d\.\d+ s, \d\.\d+ s in all"
    )
    assert re.fullmatch(pattern.format("mine-7", num_prompt), whole)
    assert re.fullmatch(pattern.format(r"\w+", num_prompt), streamed)
    assert re.fullmatch(r"- 127\.0\.0\.1 POST /v1/completions 400: \d\.\d+ s in all", refused)
    assert re.fullmatch(r"- 127\.0\.0\.1 POST /no%0Aline%1B 404: \d\.\d+ s in all", lost), "no line end of a client's"
    assert SECRET not in " ".join(told())


def test_a_client_that_leaves_and_an_engine_that_fails(start, scripted, told):
    engine = scripted()
    server = start(engine)
    with server.http() as http:
        with http.stream("POST", "/v1/completions", json={"prompt": "hold", "stream": True}) as response:
            next(response.iter_lines())
        engine.wait_aborted()
        http.post("/v1/completions", json={"prompt": "crash", "stream": True})
    server.stop()
    left, failed = sorted(told(), key=lambda line: "failed" in line)
    assert left.endswith("the client left") and " 200: " in left and "+ " in left
    assert failed.endswith("failed: engine_failed")


def test_tokens_of_a_whole_answer_that_never_came_are_unknown(start, scripted, told):
    """The engine gives the outputs of a whole answer at its end, so their number is not 0 but unknown."""
    server = start(scripted())
    with server.http() as http:
        http.post("/v1/completions", json={"prompt": "crash"})
    server.stop()
    (failed,) = told()
    assert re.search(r" 500: \d+ \+ \? tokens, ", failed), failed


def test_queries_of_the_state_are_told_at_debug(start, scripted, caplog):
    caplog.set_level(logging.DEBUG, LOGGER)
    server = start(scripted())
    with server.http() as http:
        http.get("/health")
    server.stop()
    (record,) = (record for record in caplog.records if record.name == LOGGER)
    assert record.levelno == logging.DEBUG and " GET /health 200: " in record.getMessage()


def test_prompts_are_told_if_asked_for(start, scripted, told):
    server = start(scripted(), enable_log_requests=True, max_log_len=9)
    with server.http() as http:
        http.post("/v1/completions", json={"prompt": SECRET, "max_tokens": 1, "temperature": 0.5}).raise_for_status()
        http.post("/v1/completions", json={"prompt": [1, 2] * 9, "max_tokens": 1}).raise_for_status()
    server.stop()
    first, _, second, _ = told()
    assert re.match(r"cmpl-\w+-\d+ asks: 'my secret' \.\.\. \(15 chars\), ", first)
    assert "temperature=0.5" in first and "max_tokens=1" in first and "top_p" not in first
    assert "asks: [1, 2, 1, 2, 1, 2, 1, 2, 1] ... (18 ids), " in second


def test_all_of_a_prompt(start, scripted, told):
    server = start(scripted(), enable_log_requests=True)
    with server.http() as http:
        http.post("/v1/completions", json={"prompt": f"{SECRET}\n[I] forged", "max_tokens": 1}).raise_for_status()
    assert f"asks: '{SECRET}\\n[I] forged', " in told()[0], "a line end is written as \\n"


def test_a_length_alone_is_refused():
    with pytest.raises(ConfigError, match="max_log_len cuts logged prompts; it needs enable_log_requests"):
        ServerOptions(max_log_len=10)


def test_every_answer_has_an_id_if_that_is_asked_for(start, scripted):
    with start(scripted(), enable_request_id_headers=True).http() as http:
        answers = [http.post("/v1/completions", json={"prompt": "x"}) for _ in range(2)]
        ids = [answer.headers["x-request-id"] for answer in answers]
        assert len(set(ids)) == 2 and [answer.json()["id"] for answer in answers] == [f"cmpl-{each}" for each in ids]
        assert http.post("/v1/completions", json={}).headers["x-request-id"], "refusals, too"
        assert http.get("/health", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
        assert http.get("/health", headers={"X-Request-Id": "a b"}).headers["x-request-id"] != "a b"
