"""Finding a model's folder; the hub is always a stand-in here."""

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

from lullm.errors import ModelLoadError
from lullm.weights import folder
from lullm.weights.folder import resolve_model


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that records what it is asked. `cached` and `online`: the folder it answers with, or the error."""

    class Hub:
        cached = OSError("not cached")
        online = ConnectionError("Name or service not known\nmore lines")

        def answer(self, result):
            if isinstance(result, Exception):
                raise result
            return str(result)

    hub = Hub()
    hub.asked = []

    def snapshot_download(name, *, revision, allow_patterns, local_files_only=False, etag_timeout=None):
        hub.asked.append(("cache" if local_files_only else "network", name, revision))
        assert not any(pattern.endswith((".bin", ".pt", ".py")) for pattern in allow_patterns)
        return hub.answer(hub.cached if local_files_only else hub.online)

    class HfApi:
        def model_info(self, name, *, revision, timeout):
            assert timeout <= 10
            hub.answer(hub.online)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", HfApi)
    return hub


@pytest.fixture
def model_folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    save_file({"a": torch.ones(1)}, path / "model.safetensors")
    return path


def test_a_local_folder(hub, model_folder, monkeypatch):
    assert resolve_model(str(model_folder)) == model_folder
    monkeypatch.chdir(model_folder.parent)
    assert resolve_model("model").resolve() == model_folder
    monkeypatch.setenv("HOME", str(model_folder.parent))
    assert resolve_model("~/model") == model_folder
    for name in ("demo", "~/model"):
        with pytest.raises(ModelLoadError, match="revision"):
            resolve_model(name, "v2")
    assert hub.asked == []


@pytest.mark.parametrize(
    "name", ["./model", "/no/such", "a/b/c", "../x", "~/model", "models/", "", " ", "a\\b", "x/.hidden", "a b/c", "a/"]
)
def test_what_looks_like_a_path_never_goes_to_the_hub(hub, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelLoadError, match="there is no model folder"):
        resolve_model(name)
    assert hub.asked == []


def test_a_file_is_not_a_folder(hub, model_folder):
    with pytest.raises(ModelLoadError, match="is a file"):
        resolve_model(str(model_folder / "model.safetensors"))


def test_the_cache_comes_first(hub, model_folder):
    hub.cached = model_folder
    assert resolve_model("Qwen/Qwen3-0.6B", "abc") == model_folder
    assert hub.asked == [("cache", "Qwen/Qwen3-0.6B", "abc")]


@pytest.mark.parametrize("lacking", ["config.json", "model.safetensors"])
def test_an_incomplete_snapshot_is_fetched(hub, model_folder, tmp_path, lacking):
    partial = tmp_path / "partial"
    partial.mkdir()
    for path in model_folder.iterdir():
        if path.name != lacking:
            (partial / path.name).write_bytes(path.read_bytes())
    hub.cached, hub.online = partial, model_folder
    assert resolve_model("Qwen/Qwen3-0.6B") == model_folder
    assert [where for where, _, _ in hub.asked] == ["cache", "network"]


def test_offline_says_what_to_do(hub):
    with pytest.raises(
        ModelLoadError, match="Name or service not known.*pass the path of a local model folder"
    ) as caught:
        resolve_model("Qwen/Qwen3-0.6B")
    assert "'Qwen/Qwen3-0.6B'" in str(caught.value) and "more lines" not in str(caught.value)
    assert [where for where, _, _ in hub.asked] == ["cache"]  # it did not start to download


def test_demo(hub, monkeypatch, model_folder):
    monkeypatch.setattr(folder, "DEMO_FOLDER", model_folder)
    assert resolve_model("demo") == model_folder
    monkeypatch.setattr(folder, "DEMO_FOLDER", model_folder / "gone")
    with pytest.raises(ModelLoadError, match="no bundled demo model"):
        resolve_model("demo")
    assert hub.asked == []
