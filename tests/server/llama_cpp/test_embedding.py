"""llama.cpp's /embedding and /embeddings: the vectors of /v1/embeddings, as lists."""

import math

import pytest

from lullm import AsyncLLMEngine, EngineConfig

TEXTS = ["hello world", "the quick brown"]
OPTIONS = {"dtype": "float32", "num_gpu_blocks_override": 100, "max_num_seqs": 8, "max_model_len": 64}


@pytest.fixture(scope="module")
def server(start_for_module, qwen3_folder):
    config = EngineConfig(model=str(qwen3_folder), served_model_name="tiny", convert="embed", **OPTIONS)
    return start_for_module(AsyncLLMEngine(config))


def test_vectors_are_openais(http):
    expected = http.post("/v1/embeddings", json={"input": TEXTS}).json()["data"]
    for path in ("/embedding", "/embeddings"):
        for name in ("content", "input"):
            answer = http.post(path, json={name: TEXTS}).json()
            assert answer == [{"index": n, "embedding": [item["embedding"]]} for n, item in enumerate(expected)]
    [one] = http.post("/embedding", json={"content": TEXTS[0], "embd_normalize": -1}).json()
    [vector] = one["embedding"]
    length = math.sqrt(sum(number * number for number in vector))
    assert length > 1.1 and [number / length for number in vector] == pytest.approx(expected[0]["embedding"], abs=1e-6)
    ids = http.post("/tokenize", json={"prompt": TEXTS[0]}).json()["tokens"]
    assert http.post("/embedding", json={"content": ids}).json()[0]["embedding"] == [expected[0]["embedding"]]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "needs content, or input"),
        ({"content": "a", "input": "b"}, "needs content, or input"),
        ({"content": []}, "must be a string"),
        ({"content": "a", "embd_normalize": 1}, "embd_normalize is 2"),
    ],
    ids=str,
)
def test_what_is_refused(http, body, reason):
    answer = http.post("/embedding", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == 400 and reason in error["message"]
