"""Adapters over HTTP: each is a model by its own name in every dialect; who may load and unload them."""

import asyncio

import httpx
import pytest
from kit.model.lora import merged, write_adapter

from lullm import LLM, AsyncLLMEngine, EngineConfig, SamplingParams
from lullm.errors import ConfigError, EngineDeadError
from lullm.server.gate.gate import LORA_PATHS
from lullm.server.http_server import HttpServer
from lullm.server.listen.listener import Listener
from lullm.server.options import ServerOptions

OPTIONS = {"dtype": "float32", "num_gpu_blocks_override": 100, "max_num_seqs": 8}
MESSAGES = [{"role": "user", "content": "hello"}]
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture(scope="module")
def adapters(qwen3_folder, tmp_path_factory):
    """(folder of an adapter, its answer to the messages) of two."""
    root = tmp_path_factory.mktemp("adapters")
    found = []
    for seed in range(2):
        adapter = write_adapter(root / str(seed), qwen3_folder, seed=seed)
        with LLM(str(merged(root / f"merged-{seed}", qwen3_folder, adapter)), **OPTIONS) as llm:
            [output] = llm.chat(MESSAGES, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
        found.append((adapter, output.outputs[0].text))
    return found


@pytest.fixture
def running(qwen3_folder, start, adapters):
    config = EngineConfig(model=str(qwen3_folder), served_model_name="tiny", enable_lora=True, **OPTIONS)
    return start(AsyncLLMEngine(config), lora_modules=(f"first={adapters[0][0]}",), lora_updates=True)


def test_a_model_in_every_dialect(running, adapters):
    folder, expected = adapters[0]
    chat = {"model": "first", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
    with running.http() as http:
        tiny, first = http.get("/v1/models").json()["data"]
        assert (tiny["id"], tiny["parent"]) == ("tiny", None)
        assert (first["id"], first["parent"], first["root"]) == ("first", "tiny", str(folder))
        assert http.get("/v1/models/first").json() == first
        answer = http.post("/v1/chat/completions", json=chat).json()
        assert answer["model"] == "first" and answer["choices"][0]["message"]["content"] == expected
        plain = http.post("/v1/chat/completions", json=chat | {"model": "tiny"}).json()
        assert plain["model"] == "tiny" and plain["choices"][0]["message"]["content"] != expected
        stream = http.post("/v1/chat/completions", json=chat | {"stream": True}).text
        assert '"model":"first"' in stream and '"model":"tiny"' not in stream
        message = http.post("/v1/messages", json=chat).json()
        assert message["model"] == "first" and message["content"][0]["text"] == expected
        body = {"model": "first", "input": MESSAGES, "temperature": 0, "max_output_tokens": 12}
        response = http.post("/v1/responses", json=body).json()
        assert response["model"] == "first" and response["output"][0]["content"][0]["text"] == expected
        for name in ("first", "first:latest"):
            body = {
                "model": name,
                "messages": MESSAGES,
                "stream": False,
                "options": {"temperature": 0, "num_predict": 12},
            }
            assert http.post("/api/chat", json=body).json()["message"]["content"] == expected
        missing = http.post("/v1/chat/completions", json=chat | {"model": "second"})
        assert missing.status_code == 404 and "'tiny' and 'first'" in missing.json()["error"]["message"]


def test_loading_and_unloading(running, adapters):
    folder, expected = adapters[1]
    chat = {"model": "second", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
    with running.http() as http:
        answer = http.post(LOAD, json={"lora_name": "second", "lora_path": str(folder)})
        assert answer.status_code == 200 and answer.text == "Success: LoRA adapter 'second' added successfully."
        answer = http.post("/v1/chat/completions", json=chat).json()
        assert answer["choices"][0]["message"]["content"] == expected
        for name in ("second", "tiny"):
            answer = http.post(LOAD, json={"lora_name": name, "lora_path": str(folder)})
            assert answer.status_code == 400 and f"there is a model {name!r} already" in answer.text
        for name in ("tiny:latest", "first:latest"):  # clients of Ollama mean the other by it
            assert http.post(LOAD, json={"lora_name": name, "lora_path": str(folder)}).status_code == 400
        for name, words in (("n" * 257, "has 257 characters"), ("", "is not empty"), ("a\nb", "is not empty")):
            answer = http.post(LOAD, json={"lora_name": name, "lora_path": str(folder)})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "lora_name" and words in answer.text
        answer = http.post(LOAD, json={"lora_name": "third", "lora_path": "/nowhere"})
        assert answer.status_code == 400 and "/nowhere is no folder; a LoRA adapter" in answer.text
        assert http.post(UNLOAD, json={"lora_name": "second"}).status_code == 200
        assert http.post("/v1/chat/completions", json=chat).status_code == 404
        answer = http.post(UNLOAD, json={"lora_name": "second"})
        assert answer.status_code == 404 and "there are: 'first'" in answer.text
        assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["tiny", "first"]


def test_they_do_not_exist_unless_asked_for(start, scripted):
    with start(scripted()).http() as http:
        for path in LORA_PATHS:
            answer = http.post(path, json={"lora_name": "x", "lora_path": "/"})
            assert answer.status_code == 404 and "--lora-updates" in answer.json()["error"]["message"]


def test_they_need_the_admins_key_and_port(start, scripted):
    engine = scripted(enable_lora=True)
    server = start(engine, lora_updates=True, admin_keys=("secret",), api_keys=("open",), admin_port=0)
    body = {"lora_name": "x"}
    with server.http() as http, httpx.Client(base_url=server.admin_url, timeout=20) as admin:
        assert http.post(UNLOAD, json=body, headers={"Authorization": "Bearer secret"}).status_code == 404
        assert admin.post(UNLOAD, json=body, headers={"Authorization": "Bearer open"}).status_code == 401
        answer = admin.post(UNLOAD, json=body, headers={"Authorization": "Bearer secret"})
        assert answer.status_code == 404 and "there is no adapter 'x'" in answer.text


def test_what_the_network_may_not_do():
    config = EngineConfig(enable_lora=True)
    with Listener(ServerOptions(host="0.0.0.0", port=0, lora_updates=True)) as listener:
        with pytest.raises(
            ConfigError, match="--lora-updates on 0.0.0.0.*load files of this machine; set an --admin-key"
        ):
            listener.check_exposure(ServerOptions(lora_updates=True), config)
        listener.check_exposure(ServerOptions(lora_updates=True, admin_keys=("x",)), config)
        listener.check_exposure(ServerOptions(lora_modules=("a=b",)), config)
        with pytest.raises(ConfigError, match="--lora-modules needs --enable-lora"):
            listener.check_exposure(ServerOptions(lora_modules=("a=b",)), EngineConfig())


@pytest.mark.parametrize("text", ["x", "=x", "x=", '{"name": "x"}', '{"name": "x", "path": "y", "z": 1}', "{", "[]"])
def test_modules_that_are_none(text):
    with pytest.raises(ConfigError, match="lora_modules"):
        ServerOptions(lora_modules=(text,))


def test_a_module_in_vllms_json():
    ServerOptions(lora_modules=('{"name": "a", "path": "/b", "base_model_name": "c"}', "d=/e=f"))


def test_a_module_that_is_no_adapter(qwen3_folder):
    engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), enable_lora=True, **OPTIONS))
    options = ServerOptions(port=0, lora_modules=("x=/nowhere",))

    async def serve():
        with Listener(options) as listener:
            await HttpServer(engine, options, listener).serve(print)

    with pytest.raises(ConfigError, match="lora_modules x: /nowhere is no folder"):
        asyncio.run(serve())
    with pytest.raises(EngineDeadError):
        engine.check_running()
