"""A server over two tiny models of which one fits: every dialect reaches the model that a request names."""

import asyncio
import contextlib
import json
import threading
import time

import httpx
import pytest
from kit.fleet.real import make_fleet, spec
from prometheus_client.parser import text_string_to_metric_families

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError
from lullm.server.context import open_contexts
from lullm.server.fleet import route
from lullm.server.gate.gate import FLEET_PATHS
from lullm.server.http_server import HttpServer
from lullm.server.listen.listener import Listener
from lullm.server.options import ServerOptions

MESSAGES = [{"role": "user", "content": "hello"}]
PARAMS = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def alone(qwen3_folder, llama_folder):
    found = {}
    for name, folder in (("a", qwen3_folder), ("b", llama_folder)):
        with LLM(str(folder), dtype="float32", num_gpu_blocks_override=40) as llm:
            found[name] = llm.chat(MESSAGES, PARAMS, use_tqdm=False)[0].outputs[0].text
    assert found["a"] != found["b"]
    return found


@pytest.fixture(scope="module")
def fleet(qwen3_folder, llama_folder):
    ladder = {"sleep_after": "1h:1"}
    specs = spec("a", qwen3_folder, ladder, aliases=("first",)), spec("b", llama_folder, ladder)
    return make_fleet(*specs, has_sleep_calls=True)


@pytest.fixture(scope="module")
def running(fleet, start_for_module):
    return start_for_module(fleet)


@pytest.fixture(scope="module")
def http(running):
    with running.http() as client:
        yield client


def ask(http: httpx.Client, path: str, body: dict) -> dict:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def openai(http, name):
    body = {"model": name, "messages": MESSAGES, "temperature": 0, "max_tokens": 8}
    answer = ask(http, "/v1/chat/completions", body)
    assert answer["model"] == {"first": "a"}.get(name, name)
    return answer["choices"][0]["message"]["content"]


def responses(http, name):
    body = {"model": name, "input": "hello", "temperature": 0, "max_output_tokens": 8}
    return ask(http, "/v1/responses", body)["output"][0]["content"][0]["text"]


def anthropic(http, name):
    body = {"model": name, "messages": MESSAGES, "temperature": 0, "max_tokens": 8}
    return ask(http, "/v1/messages", body)["content"][0]["text"]


def ollama(http, name):
    body = {"model": f"{name}:latest", "messages": MESSAGES, "stream": False, "keep_alive": "30m"}
    options = {"temperature": 0, "num_predict": 8}
    return ask(http, "/api/chat", body | {"options": options})["message"]["content"]


def llama_cpp(http, name):
    prompt = ask(http, "/apply-template", {"model": name, "messages": MESSAGES})["prompt"]
    body = {"model": name, "prompt": prompt, "temperature": 0, "n_predict": 8}
    answer = ask(http, "/completion", body)
    assert answer["model"] == name
    return answer["content"]


DIALECTS = [openai, responses, anthropic, ollama, llama_cpp]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.__name__)
def test_each_dialect_reaches_both_models(http, alone, dialect):
    assert [dialect(http, name) for name in "abab"] == [alone[name] for name in "abab"]


def test_streams_and_aliases(http, running, alone):
    with running.openai() as client:
        for name in ("b", "first"):
            stream = client.chat.completions.create(
                model=name, messages=MESSAGES, temperature=0, max_tokens=8, stream=True
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            assert text == alone[{"first": "a"}.get(name, name)]
    assert openai(http, "first") == alone["a"]
    nameless = {"messages": MESSAGES, "temperature": 0, "max_tokens": 8}
    assert ask(http, "/v1/chat/completions", nameless)["model"] == "a", "the first is that of requests without a name"
    assert ask(http, "/v1/chat/completions", nameless | {"model": ""})["model"] == "a"


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/api/show", "/tokenize"]
)
def test_unknown_names_are_told_the_known_ones(http, path):
    body = {"model": "c", "messages": MESSAGES, "max_tokens": 1}
    if path == "/v1/completions":
        body = {"model": "c", "prompt": "hello"}
    answer = http.post(path, json=body)
    assert answer.status_code == 404
    assert "the model 'c' does not exist here; this server serves 'a' and 'first' and 'b'" in answer.text


def test_small_endpoints_of_each_model(http):
    ask(http, "/v1/chat/completions", {"model": "b", "messages": MESSAGES, "max_tokens": 1})
    assert [entry["id"] for entry in http.get("/v1/models").json()["data"]] == ["a", "first", "b"]
    assert http.get("/v1/models/b").json()["status"]["value"] in ("loaded", "sleeping")
    cards = http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()["data"]
    assert [card["id"] for card in cards] == ["a", "first", "b"]
    assert [entry["name"] for entry in http.get("/api/tags").json()["models"]] == ["a:latest", "b:latest"]
    shown = [ask(http, "/api/show", {"model": name})["details"]["family"] for name in "ab"]
    assert shown == ["qwen3", "llama"]
    assert http.get("/props?model=b").json()["model_alias"] == "b"
    assert http.get("/tokenizer_info?model=b").status_code == 200
    assert http.get("/props?model=c").status_code == 404
    for name in "ab":
        tokens = ask(http, "/tokenize", {"model": name, "prompt": "hello world"})["tokens"]
        assert ask(http, "/detokenize", {"model": name, "tokens": tokens})["prompt"] == "hello world"
    counted = ask(http, "/v1/messages/count_tokens", {"model": "b", "messages": MESSAGES})
    assert counted["input_tokens"] > 3


def states(http) -> dict[str, str]:
    return {card["id"]: card["state"] for card in http.get("/models").json()["data"]}


def test_loading_and_unloading(http):
    assert ask(http, "/models/load", {"model": "b"})["state"] == "awake"
    assert states(http) == {"a": "sleeping", "b": "awake"}
    assert [model["name"] for model in http.get("/api/ps").json()["models"]] == ["b:latest"]
    found = {model["model"]: model["state"] for model in http.get("/running").json()["running"]}
    assert found == {"a": "sleeping", "b": "ready"}
    answer = ask(http, "/models/unload", {"model": "b"})
    assert answer["success"] and answer["was_loaded"] and answer["status"] == {"value": "unloaded"}
    assert not ask(http, "/models/unload", {"model": "b"})["was_loaded"]
    assert [model["model"] for model in http.get("/running").json()["running"]] == ["a"]
    assert http.post("/models/load", json={"model": "c"}).status_code == 404
    assert http.post("/models/load", json={}).status_code == 400


def test_sleep_of_each_model(http, alone):
    assert openai(http, "a") == alone["a"]
    assert not http.get("/is_sleeping?model=a").json()["is_sleeping"]
    explained = http.get("/sleep/explain?model=a&level=1").json()
    assert explained["frees_bytes"] > 0
    assert http.post("/sleep?model=a&level=2").json()["sleeping_tags"] == ["weights", "kv_cache"]
    assert http.get("/is_sleeping?model=a").json()["state"] == "discard_all"
    woken = ask(http, "/wake_up", {"model": "a"})
    assert woken["was_sleeping"] and woken["state"] == "awake" and woken["restored_bytes"] > 0
    for path in ("/sleep", "/wake_up", "/pause"):
        answer = http.post(path, json={})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "model_needed"
        assert "one of a, b" in answer.text
    assert http.get("/is_sleeping").status_code == 400
    assert http.post("/sleep?model=a&tags=weights").status_code == 400
    assert ask(http, "/pause", {"model": "a"})["state"] == "paused"
    body = {"model": "a", "messages": MESSAGES, "max_tokens": 1}
    assert http.post("/v1/chat/completions", json=body).status_code == 503
    assert ask(http, "/resume", {"model": "a"})["state"] == "awake"
    methods = ask(http, "/collective_rpc", {"model": "a", "method": "modified_weights"})
    assert methods == {"results": [[]]}
    assert ask(http, "/models/unload", {"model": "a"})["success"]
    conflict = http.post("/collective_rpc", json={"model": "a", "method": "modified_weights"})
    assert conflict.status_code == 409 and "'a' is not loaded" in conflict.text


def test_a_mistyped_name_changes_no_model(start, qwen3_folder, llama_folder):
    """Where every name is taken, requests with other names reach the first model; calls that change a model do not."""
    fleet = make_fleet(spec("a", qwen3_folder), spec("b", llama_folder), has_sleep_calls=True)
    with start(fleet, any_model_name=True).http() as http:
        body = {"model": "c", "messages": MESSAGES, "max_tokens": 1}
        assert ask(http, "/v1/chat/completions", body)["model"] == "a"
        before = states(http)
        for path in ("/sleep", "/wake_up", "/pause", "/resume", "/reset_prefix_cache", "/models/unload"):
            answer = http.post(path, json={"model": "c"})
            assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
            assert http.post(path, json={"model": ""}).status_code in (400, 404)
            assert states(http) == before


def test_snapshots_wake_nothing(http, fleet):
    ask(http, "/models/load", {"model": "b"})
    ask(http, "/sleep", {"model": "b"})
    before, idle_s = states(http), fleet.members["b"].idle_s
    changes = dict(fleet.policy.changes)
    for path in ("/health", "/metrics", "/running", "/models", "/v1/models", "/api/ps", "/api/tags", "/props", "/load"):
        assert http.get(path).status_code == 200
    with http.stream("GET", "/page/events?model=b") as events:
        lines = (json.loads(line.removeprefix("data: ")) for line in events.iter_lines() if line)
        about, snapshot = next(lines), next(lines)
    assert about["about"]["model"] == "b" and about["about"]["models"] == ["a", "b"]
    assert snapshot["models"] == before
    assert states(http) == before and fleet.policy.changes == changes
    assert fleet.members["b"].idle_s >= idle_s
    assert http.get("/health").json() == {"status": "ok", "is_sleeping": True}


def test_metrics_have_a_label_for_each_model(http, alone):
    for name in "ab":
        openai(http, name)
    families = list(text_string_to_metric_families(http.get("/metrics").text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family of several models stands once"
    by_name = {family.name: family.samples for family in families}
    tokens = {sample.labels["model_name"]: sample.value for sample in by_name["lullm_generation_tokens"]}
    assert set(tokens) == {"a", "b"} and min(tokens.values()) > 0
    assert {sample.labels["model_name"] for sample in by_name["vllm:generation_tokens"]} == {"a", "b"}
    now = {
        sample.labels["model_name"]: sample.labels["state"]
        for sample in by_name["lullm_model_state"]
        if sample.value == 1
    }
    assert now == states(http)
    budget = by_name["lullm_memory_budget_bytes"][0].value
    assert 0 < sum(sample.value for sample in by_name["lullm_model_memory_bytes"]) <= budget
    causes = {(s.labels["change"], s.labels["cause"]) for s in by_name["lullm_model_changes"]}
    assert {("load", "request"), ("sleep", "budget"), ("wake", "request")} <= causes
    waits = [sample for sample in by_name["lullm_model_wait_seconds"] if sample.name.endswith("_count")]
    assert {sample.labels["model_name"] for sample in waits} == {"a", "b"} and sum(s.value for s in waits) > 0
    slept = [s for s in by_name["lullm_engine_sleeps"] if s.labels["cause"] == "budget" and s.name.endswith("_total")]
    assert sum(sample.value for sample in slept) > 0


def test_a_client_that_waits_and_leaves(http, fleet, running, alone):
    openai(http, "a")
    member = fleet.members["a"]
    used = threading.Event()

    async def use() -> None:
        with fleet.use("a"):
            while not used.is_set():
                await asyncio.sleep(0.005)

    keeping = asyncio.run_coroutine_threadsafe(use(), running._loop)
    try:
        body = {"model": "b", "messages": MESSAGES, "max_tokens": 4}
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/chat/completions", json=body, timeout=0.3)
        limit = time.monotonic() + 10
        while fleet.policy.records["b"].waiting:
            assert time.monotonic() < limit
            time.sleep(0.01)
        assert member.status.state == "awake"
    finally:
        used.set()
        keeping.result(10)


def test_the_gate_knows_the_paths(fleet):
    routes = route.router(open_contexts(fleet, ServerOptions())).routes
    assert {each.path for each in routes if "POST" in each.methods} == FLEET_PATHS


def test_admin_endpoints_need_their_flag_and_key(start, qwen3_folder):
    closed = start(make_fleet(spec("a", qwen3_folder)))
    with closed.http() as client:
        answer = client.post("/models/unload", json={"model": "a"})
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "sleep_mode_off"
        assert client.post("/sleep?model=a").status_code == 404
        assert client.get("/running").json() == {"running": []}
    with Listener(ServerOptions(host="0.0.0.0", port=0)) as listener, pytest.raises(ConfigError, match="admin-key"):
        HttpServer(make_fleet(spec("a", qwen3_folder), has_sleep_calls=True), listener_options(), listener)
    keyed = start(make_fleet(spec("a", qwen3_folder), has_sleep_calls=True), admin_keys=("secret",))
    with keyed.http() as client:
        assert client.post("/models/load", json={"model": "a"}).status_code == 401
        headers = {"Authorization": "Bearer secret"}
        assert client.post("/models/load", json={"model": "a"}, headers=headers).status_code == 200


def listener_options() -> ServerOptions:
    return ServerOptions(host="0.0.0.0", port=0)


def test_the_end_lets_running_and_waiting_requests_finish(start, qwen3_folder, llama_folder, alone):
    fleet = make_fleet(spec("a", qwen3_folder), spec("b", llama_folder))
    running = start(fleet)
    found = {}

    def talk(name: str) -> None:
        with running.http() as client:
            found[name] = openai(client, name)

    threads = [threading.Thread(target=talk, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + 10
    while sum(member.status.num_running + member.status.num_waiting for member in fleet.members.values()) < 2:
        if len(found) == 2 or time.monotonic() > limit:
            break
        time.sleep(0.001)
    running.signal()
    for thread in threads:
        thread.join(20)
    running.join()
    assert found == alone
    with contextlib.suppress(httpx.TransportError), running.http() as client:
        client.get("/health")
        raise AssertionError("the server has ended")
