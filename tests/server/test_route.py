"""The small endpoints, and the Prometheus numbers."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

import lullm
from lullm.server.error import ELSEWHERE


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by, model.max_model_len) == ("scripted", "model", "lullm", 512)
    assert client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_what_is_called_in_place_of_others_endpoints(start, scripted):
    """The endpoints that are named are there, and none of them has the refused name."""
    with start(scripted(enable_sleep_mode=True)).http() as http:
        paths = http.get("/openapi.json").json()["paths"]
        for path, instead in ELSEWHERE.items():
            response = http.post(path, json={})
            assert response.status_code == 404 and response.json()["error"]["message"].endswith(instead)
            assert all(named in paths for named in re.findall(r"(?:GET|POST) (/[\w/-]+)", instead))
        assert "GET /docs" in http.post("/nothing", json={}).json()["error"]["message"]


def test_model_name_with_a_slash(start, scripted):
    with start(scripted(served_model_name="org/model")).http() as http:
        assert http.get("/v1/models/org/model").json()["id"] == "org/model"


def test_health_and_version(http):
    assert http.get("/health").status_code == 200
    assert http.get("/version").json() == {"version": lullm.__version__}


def test_what_trainers_read(start, scripted):
    """TRL's clients ask before they train: which adapters fit, how many workers there are, what `logprobs` mean."""
    with start(scripted(enable_lora=True, max_lora_rank=32, max_loras=3)).http() as http:
        found = http.get("/server_info", params={"config_format": "json"}).json()["vllm_config"]
        assert found["weight_transfer_config"] is None
        assert found["model_config"]["logprobs_mode"] == "raw_logprobs"
        assert (found["lora_config"]["max_lora_rank"], found["lora_config"]["max_loras"]) == (32, 3)
        assert found["parallel_config"]["data_parallel_size"] == found["parallel_config"]["world_size"] == 1
        assert json.loads(http.get("/server_info").json()["vllm_config"]) == found
        assert http.get("/server_info", params={"config_format": "xml"}).status_code == 400
        for asked in ({}, {"include_dp": "false"}):
            assert http.get("/get_world_size", params=asked).json() == {"world_size": 1}
        assert http.get("/get_world_size", params={"include_dp": "all"}).status_code == 400
    with start(scripted()).http() as http:
        found = http.get("/server_info", params={"config_format": "json"}).json()["vllm_config"]
        assert found["lora_config"] is None


def test_health_of_a_dead_engine(start, scripted):
    engine = scripted()
    with start(engine).http() as http:
        engine.is_dead = True
        response = http.get("/health")
        assert response.status_code == 503 and response.json()["error"]["code"] == "engine_dead"
        response = http.post("/v1/completions", json={"prompt": "x"})
        assert response.status_code == 503 and response.json()["error"]["type"] == "server_error"
        assert http.get("/metrics").status_code == 200


def test_tokenize_and_back(http):
    answer = http.post("/tokenize", json={"prompt": "häi", "return_token_strs": True}).json()
    assert answer["count"] == 4 == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 512 and answer["token_strs"][0] == "h"
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {
        "prompt": "häi",
        "content": "häi",
    }


def test_tokenize_messages(http):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    with_prompt = http.post("/tokenize", json=body).json()["count"]
    without = http.post("/tokenize", json=body | {"add_generation_prompt": False}).json()["count"]
    assert (with_prompt, without) == (len("<|user|>hi\n<|assistant|>"), len("<|user|>hi\n"))


@pytest.mark.parametrize(
    "body", [{}, {"prompt": "x", "messages": []}, {"prompt": 3}, {"messages": [], "add_special_tokens": True}]
)
def test_tokenize_refuses(http, body):
    assert http.post("/tokenize", json=body).status_code == 400


def test_llama_cpps_form_of_tokenize(http):
    """The same path has another body there, and another answer."""
    ids = http.post("/tokenize", json={"prompt": "häi", "add_special_tokens": False}).json()["tokens"]
    assert http.post("/tokenize", json={"content": "häi"}).json() == {"tokens": ids}
    pieces = http.post("/tokenize", json={"content": "häi", "with_pieces": True}).json()["tokens"]
    assert [entry["id"] for entry in pieces] == ids
    assert [entry["piece"] for entry in pieces] == ["h", [0xC3], [0xA4], "i"]
    marked = {"content": "a<|end|>"}
    assert len(http.post("/tokenize", json=marked).json()["tokens"]) == 2
    assert len(http.post("/tokenize", json=marked | {"parse_special": False}).json()["tokens"]) == 8
    assert http.post("/tokenize", json=marked | {"with_pieces": True}).json()["tokens"][1]["piece"] == "<|end|>"
    assert http.post("/tokenize", json={"content": ""}).json() == {"tokens": []}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"content": "x", "prompt": "x"}, "prompt"),
        ({"content": "x", "return_token_strs": True}, "return_token_strs"),
        ({"prompt": "x", "with_pieces": True}, "with_pieces"),
        ({"content": 3}, "content"),
        ({"content": "x", "add_special": "yes"}, "add_special"),
    ],
)
def test_llama_cpps_form_refuses(http, body, param):
    response = http.post("/tokenize", json=body)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_detokenize_refuses_ids_outside_the_vocabulary(http):
    for tokens in ([257], [-1], ["a"], [2**70]):
        assert http.post("/detokenize", json={"tokens": tokens}).status_code == 400
    assert http.post("/detokenize", json={"tokens": []}).json() == {"prompt": "", "content": ""}


def test_long_texts_take_the_other_thread(http):
    text = "ab" * 5000
    tokens = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == text


def test_metrics(start, scripted):
    with start(scripted()).http() as http:
        for _ in range(3):
            assert http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 5}).status_code == 200
        response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    samples = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "scripted"
            samples[sample.name, *sample.labels.values()] = sample.value
    assert samples["lullm_num_requests_running",] == 2 and samples["lullm_num_requests_waiting",] == 1
    assert samples["lullm_kv_cache_usage_ratio",] == 0.25
    assert samples["lullm_prefix_cache_queries_total",] == 10 and samples["lullm_prefix_cache_hits_total",] == 4
    assert samples["lullm_preemptions_total", "swap", "cheaper"] == 5
    assert samples["lullm_kv_cache_full_total",] == 3 and samples["lullm_expert_balance_ratio",] == 0.875
    assert samples["lullm_prompt_tokens_total",] == 100 and samples["lullm_generation_tokens_total",] == 50
    assert samples["lullm_requests_finished_total", "stop"] == 3
    for name in ("time_to_first_token", "time_per_output_token", "e2e_request_latency", "request_queue_time"):
        assert samples[f"lullm_{name}_seconds_count",] == 3


def test_the_model_under_several_names(start, scripted):
    server = start(scripted(), model_aliases=("gpt-4o", "org/alias"))
    with server.openai() as client, server.http() as http:
        cards = client.models.list().data
        assert [card.id for card in cards] == ["scripted", "gpt-4o", "org/alias"]
        assert {card.root for card in cards} == {"scripted"}
        assert client.models.retrieve("org/alias").id == "org/alias"
        for name in ("scripted", "gpt-4o", "org/alias"):
            answer = client.completions.create(model=name, prompt="x", max_tokens=2)
            assert (answer.model, answer.choices[0].text) == ("scripted", "0:")
        error = http.post("/v1/completions", json={"model": "gpt-5", "prompt": "x"}).json()["error"]
        assert error["code"] == "model_not_found" and "'gpt-4o'" in error["message"]


def test_the_model_under_any_name(start, scripted):
    with start(scripted(), any_model_name=True).openai() as client:
        assert client.completions.create(model="whatever", prompt="x", max_tokens=2).model == "scripted"
        assert client.models.retrieve("whatever").id == "whatever"
        assert [card.id for card in client.models.list()] == ["scripted"]


def test_ping_is_healths_other_name(start, scripted):
    engine = scripted()
    with start(engine, api_keys=("key",)).http() as http:
        assert http.get("/ping").status_code == http.post("/ping").status_code == 200
        assert http.get("/v1/health").status_code == 200, "llama.cpp's"
        engine.is_dead = True
        assert http.get("/ping").status_code == 503


def test_load(start, scripted):
    engine = scripted()
    with start(engine).http() as http, ThreadPoolExecutor(2) as pool:
        assert http.get("/load").json() == {"server_load": 0}
        held = [pool.submit(http.post, "/v1/completions", json={"prompt": "hold"}) for _ in range(2)]
        engine.wait_held(2)
        assert http.get("/load").json() == {"server_load": 2}
        engine.released.set()
        assert [answer.result().status_code for answer in held] == [200, 200]


def test_tokenizer_info(http):
    info = http.get("/tokenizer_info").json()
    assert info["tokenizer_class"] == "Tokenizer" and info["vocab_size"] == 257 and info["model_max_length"] == 512
    assert info["eos_token"] == "<|end|>" and "add_generation_prompt" in info["chat_template"]
