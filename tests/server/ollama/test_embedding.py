"""/api/embed and /api/embeddings with the official client: the vectors of /v1/embeddings."""

import math

import ollama
import pytest
from ollama import EmbeddingsResponse, EmbedResponse

from lullm import AsyncLLMEngine, EngineConfig

TEXTS = ["hello world", "the quick brown"]
OPTIONS = {"dtype": "float32", "num_gpu_blocks_override": 100, "max_num_seqs": 8, "max_model_len": 64}


@pytest.fixture(scope="module")
def server(start_for_module, qwen3_folder):
    config = EngineConfig(model=str(qwen3_folder), served_model_name="tiny", convert="embed", **OPTIONS)
    return start_for_module(AsyncLLMEngine(config))


def test_vectors_are_openais(server, client):
    with server.openai() as other:
        expected = [item.embedding for item in other.embeddings.create(model="tiny", input=TEXTS).data]
        num_tokens = other.embeddings.create(model="tiny", input=TEXTS).usage.prompt_tokens
    answer = client.embed(model="tiny:latest", input=TEXTS)
    assert [list(vector) for vector in answer.embeddings] == [pytest.approx(vector) for vector in expected]
    assert answer.prompt_eval_count == num_tokens and answer.total_duration > 0
    [one] = client.embed(model="tiny", input=TEXTS[0], dimensions=8).embeddings
    assert len(one) == 8 and math.isclose(sum(x * x for x in one), 1, rel_tol=1e-5)
    assert list(client.embeddings(model="tiny", prompt=TEXTS[0]).embedding) == pytest.approx(expected[0])


def test_bodies_are_strict(server):
    with server.http() as http:
        body = http.post("/api/embed", json={"model": "tiny", "input": TEXTS}).content
        EmbedResponse.model_validate_json(body, strict=True)
        old = http.post("/api/embeddings", json={"model": "tiny", "prompt": "x"}).content
        EmbeddingsResponse.model_validate_json(old, strict=True)


def test_a_long_text_is_cut_or_refused(client):
    assert client.embed(model="tiny", input="x y " * 100).prompt_eval_count == 64
    with pytest.raises(ollama.ResponseError) as info:
        client.embed(model="tiny", input="x y " * 100, truncate=False)
    assert info.value.status_code == 400


def test_bounds_are_openais(server, client):
    for call in (
        lambda: client.embed(model="tiny", input=["x"] * 4097),
        lambda: client.embed(model="tiny", input=["x"] * 4000, dimensions=100_000),
        lambda: client.embed(model="tiny", input=""),
    ):
        with pytest.raises(ollama.ResponseError) as info:
            call()
        assert info.value.status_code == 400 and "input" in info.value.error or "prompt" in info.value.error
