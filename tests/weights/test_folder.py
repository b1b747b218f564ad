"""Finding a model's folder; the hub is always a stand-in here."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

from lullm import LLM
from lullm.config.gguf.file import SUFFIX, is_gguf
from lullm.errors import ModelLoadError
from lullm.weights import folder
from lullm.weights.folder import DEMO_FOLDER, resolve_model
from lullm.weights.gguf.hub import hub_gguf


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
    hub.asked, hub.listed = [], []

    def snapshot_download(name, *, revision, allow_patterns, local_files_only=False, etag_timeout=None):
        hub.asked.append(("cache" if local_files_only else "network", name, revision))
        hub.patterns = allow_patterns
        assert not any(pattern.endswith((".bin", ".pt", ".py")) for pattern in allow_patterns)
        return hub.answer(hub.cached if local_files_only else hub.online)

    class HfApi:
        def model_info(self, name, *, revision, timeout):
            assert timeout <= 10
            listed = [SimpleNamespace(rfilename=file) for file in hub.listed]
            return hub.answer(hub.online) and SimpleNamespace(siblings=listed)

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


def test_a_folder_that_is_called_like_a_file(model_folder):
    """Its header was read: 'is not a regular file; fetch it again'."""
    named = model_folder.rename(model_folder.with_name("model.gguf"))
    assert resolve_model(str(named)) == named and not is_gguf(named) and is_gguf(named / "no.gguf")


POINTERS = ["model.safetensors", "model.gguf", "config.json", "tokenizer.json", "tokenizer.model"]


@pytest.mark.parametrize("name", POINTERS)
def test_a_pointer_of_git_lfs_is_told_as_one(tmp_path, name):
    """The weights were "damaged: header too large; fetch it again", which gave the same file again."""
    folder = shutil.copytree(DEMO_FOLDER, tmp_path / "model")
    if name == "tokenizer.model":
        (folder / "tokenizer.json").unlink()
    (folder / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234\n")
    with pytest.raises(ModelLoadError, match=f"{name} is not the file itself but Git LFS's .* `git lfs pull`") as error:
        LLM(str(folder / name if name.endswith(SUFFIX) else folder))
    assert str(error.value).count(str(folder)) == 1


@contextlib.contextmanager
def without_privileges():
    """A user who may read what all may read, where the tests run as root."""
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.seteuid(65534)
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize("name", ["", "config.json", "model.safetensors", "tokenizer.json"])
def test_what_may_not_be_read_is_told_as_such(name):
    """A folder ended in PermissionError, and a file of weights was "damaged: No such file or directory"."""
    with tempfile.TemporaryDirectory() as parent:  # all may enter it, other than pytest's
        folder = shutil.copytree(DEMO_FOLDER, Path(parent) / "model")
        os.chmod(parent, 0o755)
        os.chmod(folder, 0o755)
        os.chmod(folder / name, 0)
        with without_privileges(), pytest.raises(ModelLoadError) as error:
            LLM(str(folder))
        os.chmod(folder / name, 0o755)
    assert str(error.value) == f"{folder / name} cannot be read: Permission denied"


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


NAMES = [
    "README.md", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf", "m.IQ4_XS.gguf",
    *(f"BF16/m-BF16-0000{number}-of-00002.gguf" for number in (1, 2)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wish", "files"),
    [
        ("Q4_K_M", ["m-Q4_K_M.gguf"]),
        ("q8_0", ["m-Q8_0.gguf"]),
        ("BF16", ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]),
    ],
)
def test_a_quantization_of_the_hub(hub, tmp_path, wish, files):
    hub.online, hub.listed = tmp_path, NAMES
    assert resolve_model(f"org/m-GGUF:{wish}", "v2") == tmp_path / files[0]
    assert hub.patterns == [*files, "mmproj-m-Q8_0.gguf"], "with what reads its pictures, and nothing else"
    assert hub.asked == [("cache", "org/m-GGUF", "v2"), ("network", "org/m-GGUF", "v2")]
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    hub.cached, hub.online = tmp_path, ConnectionError("offline")
    assert resolve_model(f"org/m-GGUF:{wish}") == tmp_path / files[0]
    (tmp_path / files[-1]).unlink()
    with pytest.raises(ModelLoadError, match="org/m-GGUF.* could not be fetched.*ConnectionError: offline"):
        resolve_model(f"org/m-GGUF:{wish}")
    hub.online = tmp_path
    assert resolve_model(f"org/m-GGUF:{wish}", fetches_tower=False) == tmp_path / files[0] and hub.patterns == files


def test_pull_fetches_what_an_older_one_left_out(hub, tmp_path):
    """A start asks the hub for nothing that the cache may lack; a pull does, if it can."""
    (tmp_path / "m-Q8_0.gguf").touch()
    hub.cached, hub.online, hub.listed = tmp_path, tmp_path, NAMES
    assert resolve_model("org/m-GGUF:Q8_0") == tmp_path / "m-Q8_0.gguf" and hub.asked[-1][0] == "cache"
    assert hub_gguf("org/m-GGUF", "Q8_0", asks_hub=True) == tmp_path / "m-Q8_0.gguf"
    assert hub.patterns == ["m-Q8_0.gguf", "mmproj-m-Q8_0.gguf"] and hub.asked[-1][0] == "network"
    hub.online = ConnectionError("offline")
    assert hub_gguf("org/m-GGUF", "Q8_0", asks_hub=True) == tmp_path / "m-Q8_0.gguf"
    (tmp_path / "mmproj-m-Q8_0.gguf").touch()
    num_asked = len(hub.asked)
    assert hub_gguf("org/m-GGUF", "Q8_0", asks_hub=True) == tmp_path / "m-Q8_0.gguf"
    assert [kind for kind, *_ in hub.asked[num_asked:]] == ["cache"]


@pytest.mark.parametrize(
    ("wish", "problem"), [("Q2_K", "no GGUF file is of 'Q2_K'; its .*m-Q8_0.gguf"), ("Q4_K", "no")]
)
def test_a_quantization_that_the_hub_lacks(hub, tmp_path, wish, problem):
    hub.online, hub.listed = tmp_path, NAMES
    with pytest.raises(ModelLoadError, match=problem):
        resolve_model(f"org/m-GGUF:{wish}")


def test_gguf_files(hub, tmp_path):
    one = tmp_path / "one.gguf"
    one.touch()
    assert resolve_model(str(one)) == one
    (tmp_path / "mmproj-one-f16.gguf").touch()
    assert resolve_model(str(tmp_path)) == one, "the only model of a folder"
    with pytest.raises(ModelLoadError, match="revision='v2' belongs to a hub id; .* is a file"):
        resolve_model(str(one), "v2")
    shards = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for shard in shards:
        shard.touch()
    assert resolve_model(str(shards[1])) == shards[0]
    with pytest.raises(ModelLoadError, match="holds 2 models: m-00001-of-00002.gguf, one.gguf; pass the path"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").touch()
    assert resolve_model(str(tmp_path)) == tmp_path, "a folder of safetensors may hold others beside"
    with pytest.raises(ModelLoadError, match="there is no file .*none.gguf"):
        resolve_model(str(tmp_path / "none.gguf"))
    assert hub.asked == []
