"""Adapters of several models behind one server: each is a model by its own name, and its requests wake its model."""

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from kit.fleet.real import make_fleet, spec
from kit.model.lora import merged, write_adapter

from lullm import LLM, SamplingParams
from lullm.config.lora.module import parse_module
from lullm.errors import ConfigError
from lullm.server.http_server import HttpServer
from lullm.server.listen.listener import Listener
from lullm.server.options import ServerOptions

MESSAGES = [{"role": "user", "content": "hello"}]
PARAMS = SamplingParams(temperature=0, max_tokens=8)
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
ADAPTING = {"enable_lora": True, "max_lora_rank": 8}


@pytest.fixture(scope="module")
def made(qwen3_folder, llama_folder, tmp_path_factory):
    """name -> (its folder, its answer), of both models, two adapters of the first and one of the second."""
    root, found = tmp_path_factory.mktemp("adapters"), {}
    wholes = {"a": (qwen3_folder, qwen3_folder), "b": (llama_folder, llama_folder)}
    for seed, (name, base) in enumerate({"one": qwen3_folder, "two": qwen3_folder, "three": llama_folder}.items()):
        folder = write_adapter(root / name, base, seed=seed)
        wholes[name] = merged(root / f"merged-{name}", base, folder), folder
    for name, (whole, folder) in wholes.items():
        with LLM(str(whole), dtype="float32", num_gpu_blocks_override=40) as llm:
            found[name] = folder, llm.chat(MESSAGES, PARAMS, use_tqdm=False)[0].outputs[0].text
    assert len({text for _, text in found.values()}) == 5
    return found


@pytest.fixture
def server(qwen3_folder, llama_folder, made, start):
    """One of the two models fits."""
    one, three = (parse_module(f"{name}={made[name][0]}") for name in ("one", "three"))
    a = spec("a", qwen3_folder, ADAPTING | {"sleep_after": "1h:1"}, aliases=("first",), lora_modules=(one,))
    b = spec("b", llama_folder, ADAPTING, lora_modules=(three,))
    return start(make_fleet(a, b, has_sleep_calls=True), lora_updates=True)


def ask(http, path: str, body: dict) -> dict:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat(http, name: str) -> str:
    answer = ask(http, "/v1/chat/completions", {"model": name, "messages": MESSAGES, "temperature": 0, "max_tokens": 8})
    assert answer["model"] == name
    return answer["choices"][0]["message"]["content"]


def load(http, name: str, folder, **more: str):
    return http.post(LOAD, json={"lora_name": name, "lora_path": str(folder), **more})


def states(http) -> dict[str, str]:
    return {card["id"]: card["state"] for card in http.get("/models").json()["data"]}


def test_each_adapter_wakes_its_model(server, made):
    with server.http() as http:
        assert states(http) == {"a": "unloaded", "b": "unloaded"}, "adapters are read without their models"
        for name in ("one", "three", "a", "three", "one", "b"):
            assert chat(http, name) == made[name][1]
        assert states(http) == {"a": "sleeping", "b": "awake"}
        cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
        assert list(cards) == ["a", "first", "b", "one", "three"]
        assert {name: card["parent"] for name, card in cards.items()} == {
            "a": None, "first": None, "b": None, "one": "a", "three": "b",
        }  # fmt: skip
        assert cards["three"]["root"] == str(made["three"][0])
        assert cards["one"]["state"] == "sleeping" and cards["three"]["state"] == "awake"
        assert http.get("/v1/models/one").json() == cards["one"]
        listed = {card["id"]: card["adapters"] for card in http.get("/models").json()["data"]}
        assert listed == {"a": ["one"], "b": ["three"]}
        assert [entry["name"] for entry in http.get("/api/tags").json()["models"]] == ["a:latest", "b:latest"]
        named = ask(http, "/models/load", {"model": "one"})
        assert (named["id"], named["state"]) == ("a", "awake"), "an adapter is loaded with its model"
        answer = http.post("/v1/chat/completions", json={"model": "none", "messages": MESSAGES})
        assert answer.status_code == 404 and "'a' and 'first' and 'b' and 'one' and 'three'" in answer.text


def test_in_every_dialect(server, made):
    expected = made["three"][1]
    body = {"model": "three", "messages": MESSAGES, "temperature": 0, "max_tokens": 8}
    with server.http() as http:
        stream = http.post("/v1/chat/completions", json=body | {"stream": True}).text
        assert '"model":"three"' in stream and '"model":"b"' not in stream
        assert ask(http, "/v1/messages", body)["content"][0]["text"] == expected
        spoken = {"model": "three:latest", "messages": MESSAGES, "stream": False}
        options = {"options": {"temperature": 0, "num_predict": 8}}
        assert ask(http, "/api/chat", spoken | options)["message"]["content"] == expected
        prompt = ask(http, "/apply-template", {"model": "three", "messages": MESSAGES})["prompt"]
        answer = ask(http, "/completion", {"model": "three", "prompt": prompt, "temperature": 0, "n_predict": 8})
        assert answer["content"] == expected
        assert ask(http, "/tokenize", {"model": "three", "prompt": "hello"})["count"] > 0


def test_loading_and_unloading(server, made):
    folder, expected = made["two"]
    with server.http() as http:
        answer = load(http, "two", folder)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "model_needed"
        assert "one of a, b" in answer.text
        assert load(http, "two", folder, model="c").status_code == 404
        assert load(http, "two", folder, model="first").status_code == 200
        assert states(http) == {"a": "unloaded", "b": "unloaded"}
        assert chat(http, "two") == expected and chat(http, "b") == made["b"][1]
        assert states(http)["a"] == "sleeping"
        for taken in ("two", "a", "first", "b", "three"):
            answer = load(http, taken, folder, model="a")
            assert answer.status_code == 400 and f"there is a model {taken!r} already" in answer.text
        answer = load(http, "four", "/nowhere", model="a")
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_adapter"
        answer = http.post(UNLOAD, json={"lora_name": "two", "model": "b"})
        assert answer.status_code == 404 and "there are: 'three'" in answer.text
        assert http.post(UNLOAD, json={"lora_name": "a"}).status_code == 404, "no model is unloaded so"
        assert http.post(UNLOAD, json={"lora_name": "two"}).status_code == 200, "its model sleeps"
        assert http.post("/v1/chat/completions", json={"model": "two", "messages": MESSAGES}).status_code == 404
        assert load(http, "two", made["three"][0], model="b").status_code == 200, "the name is free for any model"
        assert chat(http, "two") == made["three"][1]


def test_one_name_is_loaded_once(server, made):
    """Two clients that load it at the same time, for different models."""
    with server.http() as http, ThreadPoolExecutor(8) as pool:
        bases = ["a", "b"] * 4
        folders = {"a": made["two"][0], "b": made["three"][0]}
        answers = list(pool.map(lambda base: load(http, "new", folders[base], model=base), bases))
        assert sorted(answer.status_code for answer in answers) == [200] + [400] * 7
        [parent] = [card["parent"] for card in http.get("/v1/models").json()["data"] if card["id"] == "new"]
        assert bases[[answer.status_code for answer in answers].index(200)] == parent
        gone = list(pool.map(lambda _: http.post(UNLOAD, json={"lora_name": "new"}).status_code, range(4)))
        assert sorted(gone) == [200, 404, 404, 404]


def test_an_adapter_that_is_lost_with_its_folder(server, made, tmp_path):
    folder = shutil.copytree(made["two"][0], tmp_path / "two")
    with server.http() as http:
        assert load(http, "two", folder, model="a").status_code == 200
        shutil.rmtree(folder)
        answer = http.post("/v1/chat/completions", json={"model": "two", "messages": MESSAGES})
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "load_failed"
        assert "is no folder" in answer.text
        assert chat(http, "one") == made["one"][1] and states(http)["a"] == "awake"
        assert http.post(UNLOAD, json={"lora_name": "two"}).status_code == 200


def test_the_only_model_that_takes_adapters_gets_them(qwen3_folder, llama_folder, made, start):
    """Also those of the command line."""
    a, b = spec("a", qwen3_folder, ADAPTING), spec("b", llama_folder)
    modules = (f"one={made['one'][0]}", f'{{"name": "two", "path": "{made["two"][0]}", "base_model_name": "a"}}')
    with start(make_fleet(b, a), lora_modules=modules, lora_updates=True).http() as http:
        assert [chat(http, name) for name in ("one", "two")] == [made[name][1] for name in ("one", "two")]
        assert load(http, "three", made["one"][0]).status_code == 200
        answer = load(http, "four", made["three"][0], model="b")
        assert answer.status_code == 400 and "enable_lora" in answer.text


def test_a_name_with_ollamas_tag_where_any_name_is_taken(qwen3_folder, llama_folder, made, start):
    """It was the first model, whatever its name."""
    with start(make_fleet(spec("a", qwen3_folder), spec("b", llama_folder)), any_model_name=True).http() as http:
        body = {"messages": MESSAGES, "stream": False, "options": {"temperature": 0, "num_predict": 8}}
        answers = [ask(http, "/api/chat", body | {"model": f"{name}:latest"})["message"]["content"] for name in "abc"]
        assert answers == [made[name][1] for name in "aba"]


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        (("one={one}", "one={one}"), "lora_modules one: there is a model 'one' already; take another name"),
        (("b={one}",), "lora_modules b: there is a model 'b' already"),
        (("x=/nowhere",), "lora_modules x: /nowhere is no folder"),
        (('{"name": "x", "path": "{one}", "base_model_name": "c"}',), "lora_modules x: there is no model 'c' for it"),
        (('{"name": "x", "path": "{one}", "base_model_name": "b"}',), "lora_modules x: .* enable_lora"),
    ],
)
def test_what_is_refused_at_the_start(qwen3_folder, llama_folder, made, modules, words):
    modules = tuple(each.replace("{one}", str(made["one"][0])) for each in modules)
    fleet, options = (
        make_fleet(spec("a", qwen3_folder, ADAPTING), spec("b", llama_folder)),
        ServerOptions(port=0, lora_modules=modules),
    )

    async def serve():
        with Listener(options) as listener:
            await HttpServer(fleet, options, listener).serve(print)

    with pytest.raises(ConfigError, match=words):
        asyncio.run(serve())
    assert set(fleet.states().values()) == {"unloaded"}


def test_flags_without_a_model_that_takes_adapters(llama_folder):
    fleet = make_fleet(spec("b", llama_folder))
    for given, flag in (({"lora_updates": True}, "--lora-updates"), ({"lora_modules": ("a=b",)}, "--lora-modules")):
        options = ServerOptions(port=0, **given)
        with Listener(options) as listener, pytest.raises(ConfigError, match=f"{flag} needs --enable-lora"):
            HttpServer(fleet, options, listener)
