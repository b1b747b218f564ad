"""A server of encoders: embeddings and scores on every endpoint for them, and no text."""

import json

import httpx
import pytest
import torch
from kit.folder.encoder_only import write_encoder
from kit.folder.sentence import write_modules

from lullm import AsyncLLMEngine, EngineConfig

HEADS = (
    ("scorer", "ForSequenceClassification"),
    ("embedding", "Model"),
    ("labels", "ForTokenClassification"),
    ("classes", "ForSequenceClassification"),
)
NAMES = {"0": "ham", "1": "spam", "3": "news"}


@pytest.fixture(scope="module")
def servers(start_for_module, tmp_path_factory):
    """(of a cross-encoder, of embeddings, of labels of tokens, of classes whose third has no name)."""
    running = []
    for name, head in HEADS:
        folder = tmp_path_factory.mktemp(name)
        write_encoder(folder, f"Bert{head}", num_labels=1 if name == "scorer" else 4)
        if name == "embedding":
            write_modules(folder, "mean_tokens", normalize=True, dense=[(20, True, torch.nn.Tanh)])
        if name == "classes":
            path = folder / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"id2label": NAMES, "num_labels": 4}))
        config = EngineConfig(model=str(folder), served_model_name="tiny", dtype="float32")
        running.append(start_for_module(AsyncLLMEngine(config)))
    return running


def post(server, path, **body):
    with server.http() as http:
        answer: httpx.Response = http.post(path, json={"model": "tiny"} | body)
    return answer.status_code, answer.json()


def test_scores(servers):
    scorer, *_ = servers
    documents = ["the lazy dog", "quick", "jumps over"]
    status, answer = post(scorer, "/score", text_1="hello", text_2=documents)
    scores = [item["score"] for item in answer["data"]]
    assert status == 200 and len(set(scores)) == 3
    _, ranked = post(scorer, "/rerank", query="hello", documents=documents)
    assert {item["index"]: item["relevance_score"] for item in ranked["results"]} == pytest.approx(
        dict(enumerate(scores)), abs=1e-6
    )
    assert post(scorer, "/v1/embeddings", input="hello")[0] == 400


def test_embeddings(servers):
    _, embedding, *_ = servers
    status, answer = post(embedding, "/v1/embeddings", input=["hello", "the quick fox"], truncate_prompt_tokens=-1)
    vectors = torch.tensor([item["embedding"] for item in answer["data"]])
    assert status == 200 and vectors.shape == (2, 20), "of the layer behind the pooling"
    assert torch.allclose(vectors.norm(dim=1), torch.ones(2), atol=1e-5)
    _, ollama = post(embedding, "/api/embed", input=["hello"])
    assert torch.allclose(torch.tensor(ollama["embeddings"][0]), vectors[0], atol=1e-6)
    status, answer = post(embedding, "/v1/completions", prompt="hello")
    assert status == 400 and answer["error"]["code"] == "no_generation"
    with embedding.http() as http:
        assert http.get("/metrics").status_code == 200


def test_classes_of_tokens(servers):
    _, _, labels, _ = servers
    status, answer = post(labels, "/pooling", input=["hello", "the quick fox"], task="token_classify")
    rows = [torch.tensor(item["data"]) for item in answer["data"]]
    assert status == 200 and all(len(row) > 2 and torch.allclose(row.sum(1), torch.ones(len(row))) for row in rows)
    assert sum(map(len, rows)) == answer["usage"]["prompt_tokens"] and {row.shape[1] for row in rows} == {4}
    status, answer = post(labels, "/pooling", input="hello", task="classify")
    assert status == 400 and "labels of tokens" in answer["error"]["message"]


def test_classes(servers):
    """The probabilities are those of /pooling; the likeliest label has config.json's name, or transformers'."""
    scorer, embedding, _, classes = servers
    texts = ["hello", "the quick fox", "jumps over the lazy dog", "quick quick"]
    _, pooled = post(classes, "/pooling", input=texts)
    status, answer = post(classes, "/classify", input=texts)
    assert status == 200 and answer["object"] == "list" and answer["id"].startswith("classify-")
    assert [item["index"] for item in answer["data"]] == [0, 1, 2, 3] and answer["usage"] == pooled["usage"]
    for item, row in zip(answer["data"], pooled["data"], strict=True):
        probs = torch.tensor(item["probs"])
        assert torch.allclose(probs, torch.tensor(row["data"]), atol=1e-6) and item["num_classes"] == 4
        assert item["label"] == NAMES.get(str(int(probs.argmax())), "LABEL_2")
    _, raw = post(classes, "/classify", input="hello", use_activation=False)
    assert sum(raw["data"][0]["probs"]) != pytest.approx(1.0)
    _, one = post(scorer, "/classify", input="hello")
    assert one["data"][0]["num_classes"] == 1 and one["data"][0]["label"] == "LABEL_0"
    assert post(classes, "/classify", input="hello", add_special_tokens=False)[1]["usage"]["prompt_tokens"] == 1
    for server, body, param in (
        (embedding, {"input": "hello"}, "task"),
        (classes, {"messages": [{}], "input": "hello"}, "messages"),
        (classes, {}, "input"),
        (classes, {"input": "hello", "dimensions": "2"}, None),
    ):
        status, refused = post(server, "/classify", **body)
        assert (status, refused.get("error", {}).get("param")) == ((400, param) if param else (200, None))


def test_too_many_classes(servers, monkeypatch):
    from lullm.server.pooling import vectors

    monkeypatch.setattr(vectors, "MAX_NUMBERS", 7)
    status, answer = post(servers[3], "/classify", input=["hello", "fox"])
    assert status == 400 and answer["error"]["code"] == "too_many_numbers"
