"""What Ollama's clients are told of the model, and what they cannot change."""

import hashlib

import ollama
import pytest
from kit.template.styles import QWEN_TOOLS
from ollama import ListResponse, ProcessResponse, ShowResponse

import lullm
from lullm.config.option.sleep_after import SleepRung


def test_tags(client, http):
    [model] = client.list().models
    assert model.model == "scripted:latest" and model.modified_at is not None
    assert model.digest == hashlib.sha256(b"scripted").hexdigest()
    assert (model.details.format, model.details.family, model.size) == ("safetensors", "llama", None)
    ListResponse.model_validate_json(http.get("/api/tags").content, strict=True)


def test_size_and_quantization(start, scripted, tmp_path, connect):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    engine = scripted(model=str(tmp_path), quantization="int8")
    [model] = connect(start(engine)).list().models
    assert model.size == 100 and model.details.quantization_level == "INT8"


def test_show(client, http):
    shown = client.show("scripted")
    assert shown.modelinfo["general.architecture"] == "llama" and shown.modelinfo["llama.context_length"] == 512
    assert shown.capabilities == ["completion"] and "add_generation_prompt" in shown.template
    assert shown.parameters.split() == ["temperature", "0.5"]
    ShowResponse.model_validate_json(http.post("/api/show", json={"name": "scripted"}).content, strict=True)
    with pytest.raises(ollama.ResponseError):
        client.show("other")
    assert http.post("/api/show", json={}).json() == {"error": "model is required"}


def test_what_the_template_can(start, replying, connect):
    client = connect(start(replying(QWEN_TOOLS)))
    assert client.show("scripted").capabilities == ["completion", "tools", "thinking"]


def test_ps(start, scripted, connect):
    engine = scripted(enable_sleep_mode=True)
    running = start(engine)
    client = connect(running)
    [model] = client.ps().models
    assert (model.name, model.context_length, model.size_vram) == ("scripted:latest", 512, 0)
    assert model.expires_at.year > 2100
    with running.http() as http:
        ProcessResponse.model_validate_json(http.get("/api/ps").content, strict=True)
        http.post("/sleep").raise_for_status()
    assert client.ps().models == []


def test_ps_of_a_model_that_stays_for_longer_than_dates_have_digits(start, scripted, connect):
    engine = scripted()
    engine.next_sleep = (SleepRung(60.0, 1, "auto"), 1e300)
    [model] = connect(start(engine)).ps().models
    assert model.expires_at.year > 2100


def test_version(http):
    """Clients ask for a release of Ollama that is new enough."""
    version = http.get("/api/version").json()
    assert version["lullm"] == lullm.__version__ and tuple(map(int, version["version"].split("."))) >= (0, 6, 4)


def test_pulling_the_served_model_changes_nothing(client):
    assert client.pull("scripted").status == "success"
    assert [part.status for part in client.pull("scripted:latest", stream=True)] == ["success"]
    with pytest.raises(ollama.ResponseError) as info:
        client.pull("other")
    assert info.value.status_code == 404


def test_nothing_else_can_be_changed(client, http):
    for call in (
        lambda: client.delete("scripted"),
        lambda: client.copy("scripted", "other"),
        lambda: client.create("other", from_="scripted"),
        lambda: client.push("scripted"),
    ):
        with pytest.raises(ollama.ResponseError) as info:
            call()
        assert info.value.status_code == 400 and "lullm pull" in info.value.error
    assert http.get("/api/nothing").json()["error"].startswith("there is no such endpoint here")
