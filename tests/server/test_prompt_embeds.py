"""Rows over HTTP: prompts as files of embeddings, and prompt adapters as models by their own names."""

import asyncio
import base64
import io

import numpy as np
import pytest
import torch
from kit.fleet.real import make_fleet, spec
from kit.model.prompt_adapter import write_prompt_adapter
from safetensors.torch import load_file, save

from lullm import LLM, AsyncLLMEngine, EngineConfig, PromptAdapterRequest, SamplingParams
from lullm.config.lora.module import parse_module
from lullm.errors import ConfigError
from lullm.server.http_server import HttpServer
from lullm.server.listen.listener import Listener
from lullm.server.options import ServerOptions

OPTIONS = {"dtype": "float32", "num_gpu_blocks_override": 100, "max_num_seqs": 8, "max_model_len": 256}
ADAPTING = {"enable_prompt_adapter": True}
GREEDY = SamplingParams(temperature=0, max_tokens=8)
IDS = [[5, 6, 7, 8, 9], [40, 41]]
PLAIN = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def table(qwen3_folder):
    return load_file(qwen3_folder / "model.safetensors")["model.embed_tokens.weight"].float()


@pytest.fixture(scope="module")
def adapter(qwen3_folder, table, tmp_path_factory):
    """(folder of an adapter, its answer to `IDS[0]`, without it)."""
    folder = tmp_path_factory.mktemp("adapters") / "rows"
    write_prompt_adapter(folder, 7, table.shape[1])
    with LLM(str(qwen3_folder), **OPTIONS, **ADAPTING) as llm:
        given = [PromptAdapterRequest("rows", 1, folder), None]
        outputs = llm.generate([IDS[0]] * 2, GREEDY, use_tqdm=False, prompt_adapter_request=given)
    found = [output.outputs[0].text for output in outputs]
    assert found[0] != found[1]
    return folder, *found


@pytest.fixture(scope="module")
def running(qwen3_folder, start_for_module, adapter):
    options = OPTIONS | ADAPTING | {"enable_prompt_embeds": True, "served_model_name": "tiny"}
    engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), **options))
    return start_for_module(engine, prompt_adapters=(f"rows={adapter[0]}",))


def base64_of(data):
    return base64.b64encode(data).decode()


def npy(rows):
    file = io.BytesIO()
    np.save(file, rows.numpy())
    return file.getvalue()


def texts(http, body):
    answer = http.post("/v1/completions", json=PLAIN | body)
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def test_rows_stand_before_prompts(running, table):
    rows = [table[ids] for ids in IDS]
    with running.http() as http:
        expected = texts(http, {"prompt": IDS})
        files = [base64_of(save({"a": rows[0]})), base64_of(npy(rows[1]))]
        assert texts(http, {"prompt_embeds": files}) == expected
        assert texts(http, {"prompt_embeds": files[1], "prompt": IDS[0]}) == expected[::-1]
        assert texts(http, {"prompt_embeds": files[0], "n": 2, "cache_salt": "mine"}) == expected[:1] * 2
        answer = http.post("/v1/completions", json=PLAIN | {"prompt_embeds": files[0], "return_token_ids": True})
        assert answer.json()["usage"]["prompt_tokens"] == 5
        assert answer.json()["choices"][0]["prompt_token_ids"] == [0] * 5
        stream = http.post("/v1/completions", json=PLAIN | {"prompt_embeds": files[0], "stream": True}).text
        assert stream.count('"finish_reason":"') == 1


def test_bodies_that_are_refused(running, table):
    file = base64_of(save({"a": table[IDS[0]]}))
    pickled = io.BytesIO()
    torch.save(table[IDS[0]], pickled)
    wrong = [
        ({}, "prompt", "or send prompt_embeds"),
        ({"prompt": None}, "prompt", "or send prompt_embeds"),
        ({"prompt_embeds": []}, "prompt", "or send prompt_embeds"),
        ({"prompt_embeds": file, "echo": True}, "echo", "have none"),
        ({"prompt_embeds": file, "suffix": "a"}, "suffix", "needs a prompt of text"),
        ({"prompt_embeds": file, "prompt_logprobs": 1}, "prompt_logprobs", "have none"),
        ({"prompt_embeds": base64_of(pickled.getvalue())}, "prompt_embeds", "never read"),
        ({"prompt_embeds": "?"}, "prompt_embeds", "base64"),
        ({"prompt_embeds": base64_of(save({"a": torch.zeros(3, 3)}))}, "prompt_embeds", "not 3 x 3"),
        ({"prompt_embeds": base64_of(save({"a": torch.zeros(256, 64)}))}, "prompt_embeds", "too long"),
        ({"prompt_embeds": 7}, "prompt_embeds", ""),
        ({"prompt_embeds": [file] * 4097}, "prompt_embeds", "at most 4096"),
    ]
    with running.http() as http:
        for body, param, words in wrong:
            answer = http.post("/v1/completions", json=PLAIN | body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, param) and words in error["message"], error
        assert http.get("/health").status_code == 200


def test_a_prompt_adapter_is_a_model(running, adapter):
    folder, expected, plain = adapter
    with running.http() as http:
        tiny, rows = http.get("/v1/models").json()["data"]
        assert (rows["id"], rows["parent"], rows["root"]) == ("rows", "tiny", str(folder))
        assert texts(http, {"model": "rows", "prompt": IDS[0]}) == [expected]
        assert texts(http, {"model": "tiny", "prompt": IDS[0]}) == [plain]
        answer = http.post("/v1/completions", json=PLAIN | {"model": "rows", "prompt": IDS[0], "echo": True}).json()
        echoed = http.post("/v1/completions", json=PLAIN | {"model": "tiny", "prompt": IDS[0], "echo": True}).json()
        assert answer["model"] == "rows" and answer["usage"]["prompt_tokens"] == 7 + 5
        head = echoed["choices"][0]["text"].removesuffix(plain)
        assert answer["choices"][0]["text"] == head + expected
        chat = {"model": "rows", "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 4}
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            body = chat if "responses" not in path else {"model": "rows", "input": chat["messages"], "temperature": 0}
            assert http.post(path, json=body).json()["model"] == "rows"
        assert http.post("/api/chat", json=chat | {"stream": False}).json()["model"] == "rows"


def test_several_models(qwen3_folder, llama_folder, adapter, start, tmp_path):
    folder, expected, plain = adapter
    wide = load_file(llama_folder / "model.safetensors")["model.embed_tokens.weight"].shape[1]
    write_prompt_adapter(tmp_path / "b", 3, wide)
    options = {"max_model_len": 256, **ADAPTING}
    a = spec("a", qwen3_folder, options, prompt_adapters=(parse_module(f"own={folder}", "prompt_adapters"),))
    b = spec("b", llama_folder, options)
    named = f'{{"name": "other", "path": "{tmp_path / "b"}", "base_model_name": "b"}}'
    running = start(make_fleet(a, b, has_sleep_calls=True), prompt_adapters=(named,))
    with running.http() as http:
        parents = {card["id"]: card["parent"] for card in http.get("/v1/models").json()["data"]}
        assert parents == {"a": None, "b": None, "own": "a", "other": "b"}
        assert texts(http, {"model": "own", "prompt": IDS[0]}) == [expected]
        assert texts(http, {"model": "b", "prompt": IDS[0]}) != texts(http, {"model": "other", "prompt": IDS[0]})
        assert texts(http, {"model": "a", "prompt": IDS[0]}) == [plain]


def test_what_options_need():
    options = ServerOptions(port=0, prompt_adapters=("a=b",))
    with Listener(options) as listener:
        with pytest.raises(ConfigError, match="--prompt-adapters needs --enable-prompt-adapter"):
            listener.check_exposure(options, EngineConfig())
        listener.check_exposure(options, EngineConfig(enable_prompt_adapter=True))
    with pytest.raises(ConfigError, match="prompt_adapters takes NAME=PATH"):
        ServerOptions(prompt_adapters=("rows",))


def test_a_folder_that_is_no_prompt_adapter(qwen3_folder, tmp_path):
    async def serve():
        options = ServerOptions(port=0, prompt_adapters=(f"rows={tmp_path}",))
        engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), **OPTIONS, **ADAPTING))
        with Listener(options) as listener:
            await HttpServer(engine, options, listener).serve(print)

    with pytest.raises(ConfigError, match="prompt_adapters rows: .*has no adapter_config.json"):
        asyncio.run(serve())
