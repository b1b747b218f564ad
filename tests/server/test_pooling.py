"""Embeddings, scores and reranking over HTTP: what the wire says is what the engine says, to strict clients."""

import asyncio
import base64
import math
import struct
import time

import httpx
import openai
import pytest
from kit.folder.checkpoint import write_checkpoint
from kit.folder.sentence import write_modules, write_score
from openai.types import CreateEmbeddingResponse

from lullm import LLM, AsyncLLMEngine, EngineConfig, PoolingParams, SamplingParams
from lullm.types.request import TextPair

OPTIONS = {"dtype": "float32", "num_gpu_blocks_override": 200, "max_num_seqs": 32, "max_model_len": 256}
TEXTS = ["hello world", "the quick brown", "a b c"]
DOCUMENTS = ["quick", "lazy dog", "hello"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, qwen3_folder):
    """By what they give: embeddings beside text, embeddings only, scores only, text only."""
    bare = write_checkpoint(tmp_path_factory.mktemp("embedding"), "qwen3")
    write_modules(bare, "lasttoken", normalize=True)
    scorer = write_checkpoint(tmp_path_factory.mktemp("scorer"), "qwen3")
    write_score(scorer)
    return {"both": qwen3_folder, "embedding": bare, "scorer": scorer, "text": qwen3_folder}


class Servers:
    """One server for each of the folders, started when it is first asked for."""

    def __init__(self, start, folders):
        self._start, self._folders = start, folders
        self._running = {}

    def __getitem__(self, name):
        if name not in self._running:
            convert = {"convert": "embed"} if name == "both" else {}
            config = EngineConfig(
                model=str(self._folders[name]), served_model_name="tiny", enable_sleep_mode=name == "both",
                **OPTIONS, **convert,
            )  # fmt: skip
            self._running[name] = self._start(AsyncLLMEngine(config))
        return self._running[name]


@pytest.fixture(scope="module")
def servers(start_for_module, folders):
    return Servers(start_for_module, folders)


@pytest.fixture(scope="module")
def expected(folders):
    """The embeddings of a direct run."""
    with LLM(str(folders["both"]), **OPTIONS, convert="embed") as llm:
        return [output.outputs.embedding for output in llm.embed(TEXTS, use_tqdm=False)]


def post(server, path, **body):
    with server.http() as http:
        return http.post(path, json=body)


def refusal(response, status=400):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    return error["param"], error["code"], error["message"]


def test_the_official_client(servers, expected):
    with servers["both"].openai() as client:
        answer = client.embeddings.create(model="tiny", input=TEXTS)  # asks for base64, and decodes it
        assert [item.index for item in answer.data] == [0, 1, 2] and answer.model == "tiny"
        for item, embedding in zip(answer.data, expected, strict=True):
            assert item.embedding == pytest.approx(embedding, abs=1e-6)
        floats = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
        assert [item.embedding for item in floats.data] == expected
        small = client.embeddings.create(model="tiny", input=TEXTS[0], dimensions=8, encoding_format="float")
        assert len(small.data[0].embedding) == 8
        assert math.hypot(*small.data[0].embedding) == pytest.approx(1.0)
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="tiny", input=TEXTS[0], dimensions=65)
        assert caught.value.param == "dimensions"


def test_the_body_is_strictly_openais(servers, expected):
    response = post(servers["both"], "/v1/embeddings", model="tiny", input=TEXTS)
    raw = response.json()
    CreateEmbeddingResponse.model_validate(raw, strict=True)
    assert raw["object"] == "list" and raw["id"].startswith("embd-") and raw["usage"]["prompt_tokens"] > 3
    assert raw["usage"]["prompt_tokens"] == raw["usage"]["total_tokens"]
    packed = post(servers["both"], "/v1/embeddings", input=TEXTS[0], encoding_format="base64").json()
    values = struct.unpack("<64f", base64.b64decode(packed["data"][0]["embedding"]))
    assert values == pytest.approx(expected[0], abs=1e-6)


def test_forms_of_input(servers, expected):
    with LLM(str(servers._folders["both"]), max_model_len=32) as llm:
        ids = [llm.get_tokenizer().encode(text) for text in TEXTS]
    forms = [(TEXTS[0], 1), (ids[0], 1), (ids, 3), (TEXTS, 3)]
    for form, count in forms:
        answer = post(servers["both"], "/v1/embeddings", input=form).json()
        assert [item["embedding"] for item in answer["data"]] == expected[:count]
        assert answer["usage"]["total_tokens"] == sum(map(len, ids[:count]))
    raw = post(servers["both"], "/v1/embeddings", input=TEXTS[0], use_activation=False, user="me").json()
    assert math.hypot(*raw["data"][0]["embedding"]) != pytest.approx(1.0, abs=1e-3)
    again = post(servers["both"], "/v1/embeddings", input="hello world " * 20).json()
    again = post(servers["both"], "/v1/embeddings", input="hello world " * 20).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    long = post(servers["both"], "/v1/embeddings", input="hello world " * 200, truncate_prompt_tokens=9).json()
    assert long["usage"]["prompt_tokens"] == 9


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_field"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["a", 3]}, "input", "invalid_value"),
        ({"input": ""}, "input", None),
        ({"input": [[1], []]}, "input", "invalid_value"),
        ({"input": [5, 320]}, "input", None),
        ({"input": "a", "messages": [{}]}, "messages", "unsupported_field"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"input": "a", "encoding_format": "base64", "embed_dtype": "float16"}, "embed_dtype", "unsupported_field"),
        ({"input": "a", "encoding_format": "base64", "endianness": "big"}, "endianness", "unsupported_field"),
        ({"input": "a", "dimensions": 0}, "dimensions", None),
        ({"input": "a", "dimensions": "8"}, "dimensions", "invalid_value"),
        ({"input": "a", "normalize": True, "use_activation": False}, "normalize", None),
        ({"input": "a " * 400}, "input", "context_length_exceeded"),
        ({"input": "a", "priority": 3}, "priority", None),
        ({"input": "a", "keep_alive": "soon"}, "keep_alive", None),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", None),
    ],
    ids=str,
)
def test_bad_embeddings(servers, body, param, code):
    assert refusal(post(servers["both"], "/v1/embeddings", **body))[:2] == (param, code)


def test_too_many_numbers(servers, monkeypatch):
    from lullm.server.pooling import embedding

    monkeypatch.setattr(embedding, "MAX_NUMBERS", 150)
    assert refusal(post(servers["both"], "/v1/embeddings", input=TEXTS))[:2] == ("input", "too_many_numbers")
    assert post(servers["both"], "/v1/embeddings", input=TEXTS, dimensions=50).status_code == 200


def test_another_model(servers):
    assert refusal(post(servers["both"], "/v1/embeddings", model="x", input="a"), 404)[1] == "model_not_found"


def test_models_that_do_not(servers):
    """Each endpoint of a model that cannot serve it says so."""
    param, code, message = refusal(post(servers["text"], "/v1/embeddings", input="a"))
    assert code == "no_pooling" and "--convert embed" in message
    assert refusal(post(servers["text"], "/score", text_1="a", text_2="b"))[1] == "no_pooling"
    assert refusal(post(servers["scorer"], "/v1/embeddings", input="a"))[1] == "no_pooling"
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [MESSAGE]})):
        assert refusal(post(servers["embedding"], path, **body))[1] == "no_generation"


MESSAGE = {"role": "user", "content": "hello"}


def test_text_beside_embeddings(servers, folders):
    with LLM(str(folders["text"]), **OPTIONS) as llm:
        params = SamplingParams(temperature=0, max_tokens=12)
        text = llm.generate("hello", params, use_tqdm=False)[0].outputs[0].text
    with servers["both"].openai() as client:
        answer = client.completions.create(model="tiny", prompt="hello", max_tokens=12, temperature=0)
    assert answer.choices[0].text == text


SIDES = [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")]


@pytest.mark.parametrize("names", SIDES, ids=" ".join)
@pytest.mark.parametrize("name", ["both", "scorer"])
def test_scores(servers, folders, names, name):
    options = {"convert": "embed"} if name == "both" else {}
    with LLM(str(folders[name]), **OPTIONS, **options) as llm:
        expected = [output.outputs.score for output in llm.score("the fox", DOCUMENTS, use_tqdm=False)]
        assert len(set(expected)) == 3
    for path in ("/score", "/v1/score"):
        answer = post(servers[name], path, **{names[0]: "the fox", names[1]: DOCUMENTS}).json()
        assert [item["score"] for item in answer["data"]] == pytest.approx(expected, abs=1e-6)
        assert [item["index"] for item in answer["data"]] == [0, 1, 2] and answer["object"] == "list"
    pairs = post(servers[name], "/score", **{names[0]: ["the fox"] * 2, names[1]: DOCUMENTS[:2]}).json()
    assert [item["score"] for item in pairs["data"]] == pytest.approx(expected[:2], abs=1e-6)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank", "/reranking"])
def test_reranking(servers, folders, path):
    server = servers["scorer"]
    with LLM(str(folders["scorer"]), **OPTIONS) as llm:
        scores = [output.outputs.score for output in llm.score("the fox", DOCUMENTS, use_tqdm=False)]
    order = sorted(range(3), key=lambda index: -scores[index])
    answer = post(
        server, path, model="tiny", query="the fox", documents=[DOCUMENTS[0], {"text": DOCUMENTS[1]}, "hello"]
    )
    raw = answer.json()
    assert [result["index"] for result in raw["results"]] == order
    assert [result["relevance_score"] for result in raw["results"]] == pytest.approx(
        [scores[i] for i in order], abs=1e-6
    )
    assert [result["document"] for result in raw["results"]] == [{"text": DOCUMENTS[index]} for index in order]
    assert raw["id"].startswith("rerank-") and raw["model"] == "tiny" and raw["usage"]["total_tokens"] > 3
    best = post(server, path, query="the fox", documents=DOCUMENTS, top_n=1, return_documents=False).json()
    assert best["results"] == [{"index": order[0], "relevance_score": raw["results"][0]["relevance_score"]}]
    assert len(post(server, path, query="q", documents=DOCUMENTS, top_n=9).json()["results"]) == 3
    logits = post(server, path, query="the fox", documents=DOCUMENTS, use_activation=False).json()["results"]
    assert [result["index"] for result in logits] == order and logits[0]["relevance_score"] != best["results"][0]


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/score", {}, "text_1", "missing_field"),
        ("/score", {"text_1": "a"}, "text_1", "missing_field"),
        ("/score", {"text_1": "a", "text_2": "b", "items": "c"}, "text_1", "missing_field"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1", None),
        ("/score", {"queries": "a", "documents": []}, "documents", "invalid_value"),
        ("/score", {"text_1": "a", "text_2": 3}, "text_2", "invalid_value"),
        ("/score", {"text_1": "a", "text_2": "b " * 400}, "text_2", "context_length_exceeded"),
        ("/score", {"text_1": "a", "text_2": "b", "instruction": "c"}, "instruction", None),
        ("/rerank", {"query": "a"}, "documents", "missing_field"),
        ("/rerank", {"query": "a", "documents": []}, "documents", "invalid_value"),
        ("/rerank", {"query": "a", "documents": [3]}, "documents", "invalid_value"),
        ("/rerank", {"query": "a", "documents": [{"image": "b"}]}, "documents", "unsupported_field"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n", "invalid_value"),
        ("/rerank", {"query": "", "documents": [""]}, "documents", None),
    ],
    ids=str,
)
def test_bad_scores(servers, path, body, param, code):
    assert refusal(post(servers["scorer"], path, **body))[:2] == (param, code)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/score", {"text_1": [], "text_2": "b"}, "text_1: must be a string or a list of strings, not empty"),
        ("/score", {"text_1": "a", "text_2": ["b", 3]}, "text_2: must be a string or a list of strings, not empty"),
        ("/score", {"text_1": "a", "text_2": ["b"] * 4097}, "text_2: at most 4096 texts may stand in one request, got"),
        ("/rerank", {"query": "a", "documents": ["b", 3]}, "documents.1: must be a string, or an object with text"),
        ("/rerank", {"query": "a", "documents": [{"text": 3}]}, "documents.0.text: Input should be a valid string"),
        ("/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents.0.text is required"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_bad_text_is_named_without_classes(servers, path, body, message):
    """Pydantic puts the classes of a union into the path: documents.0.RerankDocument.title, text_1.str."""
    assert refusal(post(servers["scorer"], path, **body))[2].startswith(message)


def test_metrics(servers):
    names = ("lullm_requests_pooled_total", 'finished_reason="stop"', "request_latency_seconds_count")
    found = []
    with servers["both"].http() as http:
        for _ in range(2):
            lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith("lullm_")]
            found.append([float(line.split()[-1]) for name in names for line in lines if name in line])
            http.post("/v1/embeddings", json={"input": TEXTS})
    assert [after - before for before, after in zip(*found, strict=True)] == [3.0, 3.0, 3.0]


def test_rows_of_tokens(servers, folders, monkeypatch):
    """A row per token as floats, and packed with its shape; of two prompts; within the bound of an answer."""
    from lullm.server.pooling import rows, vectors

    with LLM(str(folders["both"]), **OPTIONS, convert="embed") as llm:
        expected = [o.outputs.data.tolist() for o in llm.encode(TEXTS, pooling_task="token_embed", use_tqdm=False)]
    monkeypatch.setattr(rows, "_PIECE_ROWS", 2)
    raw = post(servers["both"], "/pooling", model="tiny", input=TEXTS, task="token_embed").json()
    assert raw["id"].startswith("pool-") and raw["object"] == "list" and raw["usage"]["prompt_tokens"] > 3
    assert [(item["index"], item["object"]) for item in raw["data"]] == [(n, "pooling") for n in range(3)]
    for item, each in zip(raw["data"], expected, strict=True):
        assert [row == pytest.approx(other, abs=1e-6) for row, other in zip(item["data"], each, strict=True)]
    [item] = post(
        servers["both"], "/pooling", input=TEXTS[0], task="token_embed", encoding_format="base64", dimensions=8
    ).json()["data"]
    assert item["shape"] == [len(expected[0]), 8]
    assert len(base64.b64decode(item["data"])) == 4 * 8 * len(expected[0])
    [item] = post(servers["both"], "/pooling", input=TEXTS[0]).json()["data"]
    assert math.hypot(*item["data"]) == pytest.approx(1.0) and len(item["data"]) == 64
    monkeypatch.setattr(vectors, "MAX_NUMBERS", 100)
    refused = post(servers["both"], "/pooling", input=TEXTS, task="token_embed")
    assert refusal(refused)[:2] == ("input", "too_many_numbers")
    assert refusal(post(servers["both"], "/pooling", input="a", task="token_classify"))[:2] == ("task", "no_pooling")
    assert refusal(post(servers["both"], "/pooling", input="a", task="plugin"))[:2] == ("task", "invalid_value")
    assert refusal(post(servers["both"], "/pooling", input="a", step_tag_id=5))[0] == "step_tag_id"


def test_a_sleeping_server(servers):
    server = servers["both"]
    with server.http() as http:
        assert http.post("/sleep").status_code == 200
        response = http.post("/v1/embeddings", json={"input": "a"})
        assert refusal(response, 503)[1] == "engine_asleep"
        assert http.post("/wake_up").status_code == 200
        assert http.post("/v1/embeddings", json={"input": "a"}).status_code == 200


def test_a_client_that_goes_ends_its_requests(servers, monkeypatch):
    server, ended = servers["both"], []

    async def hang(request, keep_alive):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(request.prompt)

    monkeypatch.setattr(server.engine, "pool", hang)
    with server.http() as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/embeddings", json={"input": TEXTS}, timeout=0.2)
    end = time.monotonic() + 10
    while len(ended) < 3:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert ended == TEXTS


@pytest.mark.parametrize(("reason", "status", "code"), [(None, 503, "engine_asleep"), ("why", 500, "request_failed")])
def test_aborted_requests(servers, monkeypatch, reason, status, code):
    """By a sleep of mode 'abort', or for a fault of its own; the others of the body end with it."""
    server = servers["both"]
    original = server.engine.pool

    async def abort(request, keep_alive):
        output = await original(request, keep_alive)
        if request.prompt == TEXTS[1]:
            output.finish_reason, output.stop_reason = "abort", reason
        return output

    monkeypatch.setattr(server.engine, "pool", abort)
    assert refusal(post(server, "/v1/embeddings", input=TEXTS), status)[1] == code


def test_encode_without_a_server(folders):
    """As vLLM's `AsyncLLM.encode`."""

    async def run():
        engine = AsyncLLMEngine(EngineConfig(model=str(folders["scorer"]), **OPTIONS))
        try:
            pair = TextPair("the fox", "quick")
            return [output async for output in engine.encode(pair, PoolingParams(), "one")]
        finally:
            await engine.shutdown()

    [output] = asyncio.run(run())
    assert output.finished and output.request_id == "one" and 0 < output.outputs.data[0] < 1
