"""The admin endpoints over a scripted engine: arguments, answers, who may call, what the metrics say."""

import socket

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lullm.config.engine import EngineConfig
from lullm.config.option.sleep_after import SleepRung
from lullm.errors import (
    ConfigError,
    EngineAsleepError,
    EngineDeadError,
    ModelLoadError,
    SleepCancelledError,
    SleepError,
    WakeUpError,
)
from lullm.server import admin
from lullm.server.context import ServerContext
from lullm.server.gate.gate import SLEEP_PATHS
from lullm.server.listen.listener import Listener
from lullm.server.options import ServerOptions
from lullm.types.sleep import SleepEvent, SleepReport, WakeReport

DONE = {"status": "ok", "success": True}
BOTH = ["weights", "kv_cache"]
AWAKE = {"state": "awake", "is_sleeping": False, "sleeping_tags": []}
ASLEEP = {"state": "weights_offloaded", "is_sleeping": True, "sleeping_tags": BOTH}
PARTIAL = {"state": "partial", "is_sleeping": True, "sleeping_tags": ["kv_cache"]}


@pytest.fixture
def engine(scripted):
    return scripted(enable_sleep_mode=True)


@pytest.fixture
def http(start, engine):
    with start(engine).http() as http:
        yield http


def samples(http, **headers):
    found = {}
    for family in text_string_to_metric_families(http.get("/metrics", headers=headers).text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "model_name"}
            found[sample.name, *labels.values()] = sample.value
    return found


def test_they_do_not_exist_without_sleep_mode(start, scripted):
    with start(scripted()).http() as http:
        for path in SLEEP_PATHS:
            for method in ("GET", "POST"):
                answer = http.request(method, path)
                assert answer.status_code == 404 and "--enable-sleep-mode" in answer.json()["error"]["message"]


def test_the_gate_knows_every_path(engine):
    routes = admin.router(ServerContext(engine, ServerOptions())).routes
    assert {route.path for route in routes} == SLEEP_PATHS == {path for _, path in CALLS}


def test_sleep_and_wake_up(http, engine):
    assert http.get("/is_sleeping").json() == AWAKE
    report = {"level": 1, "tags": BOTH, "freed_bytes": 2000, "backed_up_bytes": 20, "seconds": 0.25}
    assert http.post("/sleep").json() == DONE | report | ASLEEP
    again = http.post("/sleep").json()
    assert again["tags"] == [] and again["freed_bytes"] == 0 and again["sleeping_tags"] == BOTH
    report = {"was_sleeping": True, "tags": ["weights"], "restored_bytes": 100, "seconds": 0.5}
    assert http.post("/wake_up", params={"tags": "weights"}).json() == DONE | report | PARTIAL
    assert http.get("/is_sleeping").json() == PARTIAL
    assert http.post("/wake_up").json()["tags"] == ["kv_cache"]
    answer = http.post("/wake_up")
    assert answer.status_code == 200
    assert answer.json() == DONE | AWAKE | {"was_sleeping": False, "tags": [], "restored_bytes": 0, "seconds": 0.5}
    assert http.post("/reset_prefix_cache").json() == DONE and engine.num_resets == 1


def test_the_names_of_another_server(http, engine):
    answer = http.post("/release_memory_occupation", json={"tags": ["kv_cache"]}).json()
    assert answer["tags"] == ["kv_cache"] and engine.sleeps.pop() == (1, "keep", ["kv_cache"], "auto", False)
    assert http.post("/release_memory_occupation").json()["tags"] == ["weights"]
    assert http.post("/resume_memory_occupation", json={"tags": ["weights"]}).json()["tags"] == ["weights"]
    assert http.post("/resume_memory_occupation", json={}).json()["is_sleeping"] is False


def test_explain(http, engine):
    forecast = {"level": 1, "tags": BOTH, "frees_bytes": 2000, "backs_up_bytes": 20}
    forecast |= {"sleep_seconds": 0.25, "wake_seconds": 0.5}
    assert http.get("/sleep/explain").json() == forecast | AWAKE
    assert engine.remote_calls.pop() == (1, None, "auto", False)
    query = "level=2&tags=weights&backup=disk&keep_prefix_cache=true"
    assert http.get(f"/sleep/explain?{query}").json()["tags"] == ["weights"]
    assert engine.remote_calls.pop() == (2, ["weights"], "disk", True)
    for query in ("level=3", "level=x", "mode=keep", "backup=tape", "keep_prefix_cache=maybe"):
        assert http.get(f"/sleep/explain?{query}").status_code == 400
    assert http.get("/is_sleeping").json() == AWAKE and engine.sleeps == []


def test_pause_and_resume(http, engine):
    assert http.get("/is_paused").json() == {"is_paused": False}
    assert http.post("/pause").json() == {
        "status": "paused",
        "state": "paused",
        "is_sleeping": True,
        "sleeping_tags": [],
    }
    assert engine.sleeps.pop()[:2] == (0, "abort") and engine.num_resets == 1
    assert http.get("/is_paused").json() == {"is_paused": True}
    assert http.post("/resume").json() == {"status": "resumed"} | AWAKE
    assert http.post("/resume").status_code == 200, "it was not paused"
    for arguments in (
        {"params": {"mode": "keep", "clear_cache": "false"}},
        {"json": {"mode": "keep", "clear_cache": False}},
    ):
        http.post("/pause", **arguments)
        assert engine.sleeps.pop()[:2] == (0, "keep") and engine.num_resets == 1
    http.post("/sleep")
    response = http.post("/resume")
    assert response.status_code == 409 and response.json()["error"]["code"] == "engine_asleep"


def test_remote_calls(http, engine, caplog):
    assert http.post("/collective_rpc", json={"method": "reload_weights"}).json() == {"results": [7]}
    assert engine.remote_calls.pop() == ("reload_weights", None, [], {})
    body = {"method": "weights_version", "args": [1, "a"], "kwargs": {"b": [2]}, "timeout": 3}
    assert http.post("/collective_rpc", json=body).json() == {"results": [7]}
    assert engine.remote_calls.pop() == ("weights_version", 3.0, [1, "a"], {"b": [2]})
    for body, param in (
        ({}, "method"),
        ({"method": "__init__"}, "method"),
        ({"method": "shutdown"}, "method"),
        ({"method": "execute_model", "args": [1]}, "method"),
        ({"method": ["reload_weights"]}, "method"),
        ({"method": "reload_weights", "args": {}}, "args"),
        ({"method": "reload_weights", "kwargs": []}, "kwargs"),
        ({"method": "reload_weights", "timeout": "x"}, "timeout"),
        ({"method": "reload_weights", "code": "1"}, "code"),
    ):
        response = http.post("/collective_rpc", json=body)
        assert response.status_code == 400 and response.json()["error"]["param"] == param, body
    for failure, status in (
        (TypeError("got an unexpected keyword argument"), 400),
        (EngineAsleepError("the weights sleep"), 409),
        (ModelLoadError("the file is damaged"), 500),
        (OSError(5, "Input/output error"), 500),
    ):
        engine.failure = failure
        response = http.post("/collective_rpc", json={"method": "reload_weights"})
        assert response.status_code == status and str(failure) in response.json()["error"]["message"]
    assert engine.remote_calls == []


def test_a_method_that_an_extension_brings(http, engine, monkeypatch):
    monkeypatch.setattr(engine, "remote_methods", engine.remote_methods | {"receive"})
    assert http.post("/collective_rpc", json={"method": "receive", "args": [2]}).json() == {"results": [7]}
    assert engine.remote_calls.pop() == ("receive", None, [2], {})

    async def answer(*_):
        return [object()]

    monkeypatch.setattr(engine, "collective_rpc", answer)
    response = http.post("/collective_rpc", json={"method": "receive"})
    assert response.status_code == 500 and "receive was called, and its results are no JSON" in response.text


ARGUMENTS = (
    ("", None, (1, "keep", None, "auto", False)),
    ("", {}, (1, "keep", None, "auto", False)),
    ("level=2", None, (2, "keep", None, "auto", False)),
    ("level=2", {}, (2, "keep", None, "auto", False)),
    ("level=0&mode=wait", None, (0, "wait", None, "auto", False)),
    ("tags=weights", None, (1, "keep", ["weights"], "auto", False)),
    ("tags=weights&tags=kv_cache&mode=abort", None, (1, "abort", BOTH, "auto", False)),
    ("backup=ram&keep_prefix_cache=True", None, (1, "keep", None, "ram", True)),
    ("backup=disk&keep_prefix_cache=0", None, (1, "keep", None, "disk", False)),
    ("", {"level": 2, "mode": "abort", "tags": ["kv_cache"]}, (2, "abort", ["kv_cache"], "auto", False)),
    ("", {"backup": "ram", "keep_prefix_cache": True}, (1, "keep", None, "ram", True)),
    ("", {"level": None, "mode": None, "tags": None}, (1, "keep", None, "auto", False)),
)


def test_query_and_body_alike(http, engine):
    for query, body, call in ARGUMENTS:
        response = http.post(f"/sleep?{query}", **({} if body is None else {"json": body}))
        assert response.status_code == 200 and engine.sleeps.pop() == call, (query, body)


MISUSE = (
    ("/sleep", "level=x", None, "level"),
    ("/sleep", "level=1.0", None, "level"),
    ("/sleep", "level=", None, "level"),
    *(
        ("/sleep", f"level={text}", None, "level")
        for text in ("\u0661", "1_0", "%2B1", "%201", "1%0A", "\uff11", "9" * 30)
    ),
    ("/sleep", "level=1&level=2", None, "level"),
    ("/sleep", "level=3", None, "level"),
    ("/sleep", "mode=later", None, "mode"),
    ("/sleep", "lvl=1", None, "lvl"),
    ("/sleep", "backup=tape", None, "backup"),
    ("/sleep", "keep_prefix_cache=yes", None, "keep_prefix_cache"),
    ("/sleep", "", {"keep_prefix_cache": "true"}, "keep_prefix_cache"),
    ("/sleep", "level=1", {"level": 1}, None),
    ("/sleep", "", {"level": "1"}, "level"),
    ("/sleep", "", {"level": True}, "level"),
    ("/sleep", "", {"mode": ["keep"]}, "mode"),
    ("/sleep", "", {"tags": "weights"}, "tags"),
    ("/sleep", "", {"tags": []}, "tags"),
    ("/sleep", "", {"tags": [1]}, "tags"),
    ("/sleep", "", {"force": True}, "force"),
    ("/sleep", "", [1], None),
    ("/wake_up", "level=1", None, "level"),
    ("/wake_up", "", {"mode": "keep"}, "mode"),
    ("/release_memory_occupation", "level=2", None, "level"),
    ("/resume_memory_occupation", "", {"tags": []}, "tags"),
    ("/pause", "mode=later", None, "mode"),
    ("/pause", "clear_cache=2", None, "clear_cache"),
    ("/pause", "", {"level": 1}, "level"),
    ("/resume", "mode=keep", None, "mode"),
    ("/reset_prefix_cache", "reset_running_requests=true", None, "reset_running_requests"),
)


def test_misuse(http, engine):
    for path, query, body, param in MISUSE:
        response = http.post(f"{path}?{query}", **({} if body is None else {"json": body}))
        assert response.status_code == 400, (path, query, body)
        assert response.json()["error"]["param"] == param, (path, query, body)
        assert engine.sleeps == [] and not engine.is_sleeping


@pytest.mark.parametrize(
    ("path", "failure", "status", "code"),
    [
        ("/sleep", SleepError("No space left on device"), 500, "sleep_failed"),
        ("/sleep", SleepCancelledError("wake_up came first"), 409, "sleep_cancelled"),
        ("/sleep", EngineAsleepError("what is kept cannot end"), 409, "engine_asleep"),
        ("/sleep", EngineDeadError("gone"), 500, "engine_failed"),
        ("/sleep", RuntimeError("secret"), 500, "internal_error"),
        ("/wake_up", WakeUpError("still asleep: another checksum"), 500, "wake_up_failed"),
    ],
)
def test_failures(http, engine, path, failure, status, code, caplog):
    if path == "/wake_up":
        assert http.post("/sleep").status_code == 200
    engine.failure = failure
    response = http.post(path)
    error = response.json()["error"]
    assert response.status_code == status and error["code"] == code
    assert "secret" not in error["message"]
    if code == "sleep_failed":
        assert str(failure) in caplog.text, "it stood in the answer alone"
    assert http.get("/is_sleeping").json()["is_sleeping"] == (path == "/wake_up"), "as it was before"


def test_generation_on_a_sleeping_engine(http):
    http.post("/sleep")
    for path, prompt in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/completions", {"prompt": ["x", "y"]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        for stream in (False, True):
            response = http.post(path, json=prompt | {"stream": stream, "max_tokens": 2})
            assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("server_error", "engine_asleep") and "wake_up" in error["message"]
    assert http.get("/health").json() == {"status": "ok", "is_sleeping": True}
    assert http.post("/tokenize", json={"prompt": "x"}).status_code == 200
    http.post("/wake_up")
    assert http.get("/health").json() == {"status": "ok", "is_sleeping": False}
    assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200


def test_metrics(http, engine, caplog):
    found = samples(http)
    assert found["lullm_engine_is_sleeping",] == 0
    assert found["lullm_engine_sleeping", "weights"] == found["lullm_engine_sleeping", "kv_cache"] == 0
    http.post("/sleep", params={"level": 2, "tags": "kv_cache"})
    http.post("/sleep", params={"level": 2, "tags": "kv_cache"})
    engine.failure = WakeUpError("still asleep")
    http.post("/wake_up")
    engine.failure = SleepError("No space left on device")
    http.post("/sleep")
    found = samples(http)
    assert found["lullm_engine_is_sleeping",] == 1
    assert (found["lullm_engine_sleeping", "weights"], found["lullm_engine_sleeping", "kv_cache"]) == (0, 1)
    assert found["lullm_engine_sleep_seconds_count", "2"] == 1 and found["lullm_engine_sleep_seconds_sum", "2"] == 0.25
    assert found["lullm_engine_freed_bytes_total",] == 1000 and found["lullm_engine_backed_up_bytes_total",] == 10
    assert found["lullm_engine_wake_up_failures_total",] == found["lullm_engine_sleep_failures_total",] == 1
    assert found["lullm_engine_wake_up_seconds_count",] == 0
    for _ in range(2):
        http.post("/wake_up")
    found = samples(http)
    assert found["lullm_engine_wake_up_seconds_count",] == 1, "the second found it awake"
    assert found["lullm_engine_restored_bytes_total",] == 100 and found["lullm_engine_wake_up_seconds_sum",] == 0.5


def test_metrics_of_state_and_cause(http, engine):
    def states():
        found = samples(http)
        return [key[1] for key, value in found.items() if key[0] == "lullm_engine_sleep_state" and value == 1]

    assert states() == ["awake"]
    http.post("/pause")
    assert states() == ["paused"]
    http.post("/sleep", params={"tags": "kv_cache"})
    assert states() == ["partial"]
    http.post("/sleep")
    assert states() == ["weights_offloaded"]
    http.post("/wake_up")
    engine.tell(SleepEvent("idle", slept=SleepReport(2, ("weights",), 5, 0, 1.5)))
    engine.tell(SleepEvent("request", woke=WakeReport(("weights",), 5, 2.5)))
    engine.tell(SleepEvent("request", failed="wake_up"))
    engine.idle_s, engine.next_sleep = 12.5, (SleepRung(60, 1, "disk"), 47.5)
    found = samples(http)
    assert {cause: found["lullm_engine_sleeps_total", cause] for cause in ("call", "idle")} == {"call": 3, "idle": 1}
    assert {cause: found["lullm_engine_wakes_total", cause] for cause in ("call", "request")} == {
        "call": 1,
        "request": 1,
    }
    assert found["lullm_engine_sleep_seconds_count", "0"] == 1 and found["lullm_engine_sleep_seconds_sum", "2"] == 1.5
    assert found["lullm_engine_wake_up_failures_total",] == 1
    assert found["lullm_engine_idle_seconds",] == 12.5
    assert found["lullm_engine_next_sleep_seconds", "disk", "1"] == 47.5
    engine.next_sleep = None
    assert not [key for key in samples(http) if key[0] == "lullm_engine_next_sleep_seconds"]


CALLS = [
    *(("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping"), ("POST", "/reset_prefix_cache")),
    *(("GET", "/sleep/explain"), ("POST", "/release_memory_occupation"), ("POST", "/resume_memory_occupation")),
    *(("POST", "/pause"), ("GET", "/is_paused"), ("POST", "/resume"), ("POST", "/collective_rpc")),
]
NUM = len(CALLS)


def statuses(http, key=None, **headers):
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    body = {"method": "weights_version"}
    return [
        http.request(method, path, headers=headers, json=body if path == "/collective_rpc" else None).status_code
        for method, path in CALLS
    ]


def test_admin_key(start, engine):
    with start(engine, api_keys=("api",), admin_keys=("admin", "other")).http() as http:
        for wrong in (None, "api", "wrong", "admin2", "Bearer admin"):
            assert statuses(http, wrong) == [401] * NUM
        for key in ("admin", "other"):
            assert statuses(http, key) == [200] * NUM
        assert http.get("/v1/models", headers={"Authorization": "Bearer admin"}).status_code == 401
        assert http.get("/v1/models", headers={"Authorization": "Bearer api"}).status_code == 200
        response = http.post("/sleep", headers={"Authorization": "Bearer api"})
        assert (
            response.json()["error"]["code"] == "invalid_api_key" and "admin key" in response.json()["error"]["message"]
        )


def test_admin_key_alone_leaves_the_rest_open(start, engine):
    with start(engine, admin_keys=("admin",)).http() as http:
        assert statuses(http) == [401] * NUM and statuses(http, "admin") == [200] * NUM
        assert http.get("/v1/models").status_code == 200


def test_without_an_admin_key_they_are_as_open_as_the_rest(start, scripted):
    with start(scripted(enable_sleep_mode=True), api_keys=("api",)).http() as http:
        assert statuses(http) == [401] * NUM and statuses(http, "api") == [200] * NUM
    with start(scripted(enable_sleep_mode=True)).http() as http:
        assert statuses(http) == [200] * NUM


def test_a_web_page_cannot_put_a_local_engine_to_sleep(start, scripted):
    with start(scripted(enable_sleep_mode=True), allowed_origins=("http://mine",)).http() as http:
        assert statuses(http, origin="http://page") == [403] * NUM
        assert statuses(http, origin="http://mine") == [200] * NUM
    with start(scripted(enable_sleep_mode=True), admin_keys=("admin",)).http() as http:
        assert statuses(http, "admin", origin="http://page") == [200] * NUM, "it has the key"


@pytest.mark.parametrize(
    ("host", "admin_keys", "is_refused"),
    [
        ("127.0.0.1", (), False),
        ("localhost", (), False),
        ("0.0.0.0", (), True),
        ("::", (), True),
        ("0.0.0.0", ("k",), False),
    ],
)
def test_exposure(host, admin_keys, is_refused):
    options = ServerOptions(host=host, port=0, admin_keys=admin_keys)
    config = EngineConfig(enable_sleep_mode=True)
    with Listener(options) as listener:
        if is_refused:
            with pytest.raises(ConfigError, match="--admin-key"):
                listener.check_exposure(options, config)
        else:
            listener.check_exposure(options, config)


def test_exposure_over_ipv6():
    options = ServerOptions(host="::1", port=0)
    try:
        listener = Listener(options)
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert listener.sockets[0].family is socket.AF_INET6
        listener.check_exposure(options, EngineConfig(enable_sleep_mode=True))


def test_keys_that_open_nothing_or_too_much():
    for options in ({"admin_keys": ("",)}, {"admin_keys": ("a",), "api_keys": ("a",)}):
        with pytest.raises(ConfigError, match="admin key"):
            ServerOptions(**options)
    options = ServerOptions(port=0, admin_keys=("a",))
    with Listener(options) as listener, pytest.raises(ConfigError, match="--enable-sleep-mode"):
        listener.check_exposure(options, EngineConfig())
