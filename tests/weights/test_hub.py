"""What the hub's failures tell a user, and the cache; the client is huggingface_hub's, the hub a stand-in."""

import errno
import json
import time
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from httpx import ConnectError, Request, Response
from huggingface_hub import errors
from kit.folder.gguf_files import FORMATS, write_gguf
from transformers import GptOssConfig

from lullm.cli.main import USER_ERROR, main
from lullm.errors import ModelLoadError
from lullm.weights.hub import cache
from lullm.weights.hub.cache import cached_models, remove_model
from lullm.weights.hub.download import download

NAME = "acme/model-1b"
HASH = "0123456789abcdef0123456789abcdef01234567"


def refusal(kind, status):
    response = Response(status, request=Request("GET", f"https://huggingface.co/api/models/{NAME}"))
    return kind("no", response=response)


@pytest.fixture
def offline(monkeypatch):
    """`offline(error)`: the hub answers so."""

    def use(error):
        class HfApi:
            def model_info(self, name, *, revision, timeout):
                raise error

        monkeypatch.setattr(huggingface_hub, "HfApi", HfApi)

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return use


@pytest.mark.parametrize(
    ("error", "token", "match"),
    [
        (refusal(errors.GatedRepoError, 403), None, "is gated: accept its terms on https://.*model-1b; set HF_TOKEN"),
        (refusal(errors.GatedRepoError, 403), "x", "is gated: .*account of HF_TOKEN has not been let in"),
        (refusal(errors.RepositoryNotFoundError, 404), None, "no such model on the hub .*private one needs HF_TOKEN"),
        (refusal(errors.RepositoryNotFoundError, 401), None, "no such model on the hub"),
        (refusal(errors.RepositoryNotFoundError, 401), "x", "refuses HF_TOKEN"),
        (refusal(errors.RevisionNotFoundError, 404), None, "has no revision 'v9'"),
        (refusal(errors.HfHubHTTPError, 429), None, "fewer requests.*HF_TOKEN"),
        (refusal(errors.HfHubHTTPError, 500), None, "could not be fetched"),
        (OSError(errno.ENOSPC, "No space left on device"), None, "no space is left.*lullm list.*HF_HOME"),
        (ConnectError("Name or service not known"), None, "Name or service not known.*check the network"),
    ],
)
def test_a_failure_says_what_to_do(offline, monkeypatch, error, token, match):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    offline(error)
    with pytest.raises(ModelLoadError, match=match) as caught:
        download(NAME, "v9")
    assert NAME in str(caught.value)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("dmeo", "did you mean demo, which is here"),
        ("Acme/model1b", f"did you mean {NAME}, which is here"),
        ("llama3", "; of a name of Ollama's"),
        ("other/llama3", "private one needs HF_TOKEN\\)$"),
    ],
)
def test_a_name_that_is_almost_one_of_a_model_that_is_here(offline, monkeypatch, name, match):
    offline(refusal(errors.RepositoryNotFoundError, 404))
    monkeypatch.setattr("lullm.weights.hub.download.cached_models", lambda: [SimpleNamespace(name=NAME)])
    with pytest.raises(ModelLoadError, match=match):
        download(name, None)


def test_a_repository_of_gguf_files_is_not_fetched(monkeypatch):
    """Its small files were, and then a config.json was missing."""
    files = [SimpleNamespace(rfilename=name) for name in ("README.md", "m-Q8_0.gguf", "m-F16.gguf")]

    class HfApi:
        def model_info(self, name, *, revision, timeout):
            return SimpleNamespace(siblings=files)

    monkeypatch.setattr(huggingface_hub, "HfApi", HfApi)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("fetched"))
    with pytest.raises(ModelLoadError, match=f"as {NAME}:Q4_K_M: m-F16.gguf, m-Q8_0.gguf"):
        download(NAME, None)


def test_a_forbidden_network_is_named(monkeypatch, offline, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline(errors.OfflineModeIsEnabled("offline"))
    assert main(["pull", NAME]) == USER_ERROR
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_bars_are_for_terminals(monkeypatch, is_terminal, offline):
    from huggingface_hub.utils import are_progress_bars_disabled

    class HfApi:
        def model_info(self, name, *, revision, timeout):
            return SimpleNamespace(siblings=None)

    seen = []
    monkeypatch.setattr(huggingface_hub, "HfApi", HfApi)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **_: seen.append(are_progress_bars_disabled()) or "x"
    )
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    before = are_progress_bars_disabled()
    download(NAME, None)
    assert seen == [not is_terminal] and are_progress_bars_disabled() == before


@pytest.fixture
def hub_cache(monkeypatch, tmp_path, qwen3_folder):
    """A cache with one model, in the layout of the hub's client."""
    monkeypatch.setattr(cache, "_scan", lambda: huggingface_hub.scan_cache_dir(tmp_path / "hub"))
    repo = tmp_path / "hub" / ("models--" + NAME.replace("/", "--"))
    snapshot = repo / "snapshots" / HASH
    for folder in (snapshot, repo / "blobs", repo / "refs"):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text(HASH)
    for path in qwen3_folder.iterdir():
        (repo / "blobs" / path.name).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(repo / "blobs" / path.name)
    return repo


def test_list(hub_cache, capsys):
    [model] = cached_models()
    assert (model.name, model.revision, model.refs, model.is_complete) == (NAME, HASH, ("main",), True)
    assert main(["list"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "REVISION", "SIZE", "USED"]
    assert line.split()[:2] == [NAME, "main"] and line.endswith("today")
    (hub_cache / "snapshots" / HASH / "model.safetensors").unlink()
    assert main(["list"]) == 0
    assert "incomplete: lullm pull" in capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)
    assert told["name"] == NAME and not told["is_complete"] and abs(told["last_used"] - time.time()) < 3600


def test_show(hub_cache, capsys, qwen3_folder, tmp_path):
    for name in (NAME, str(qwen3_folder)):
        assert main(["show", name]) == 0
        told = capsys.readouterr().out
        assert "Qwen3ForCausalLM" in told and "runs           yes" in told
    assert main(["show", NAME, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["layers"] == 3 and facts["quantized"] == "no" and facts["weights_bytes"] > 100_000
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text('{"architectures": ["Strange"]}')
    assert main(["show", str(tmp_path / "odd")]) == 0
    assert "no: " in capsys.readouterr().out
    config = {"architectures": ["GptOssForCausalLM"], "quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "odd" / "config.json").write_text(json.dumps(GptOssConfig().to_dict() | config))
    assert main(["show", str(tmp_path / "odd"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quantized"] == "mxfp4"
    assert main(["show", "acme/other"]) == USER_ERROR
    assert "lullm pull acme/other" in capsys.readouterr().err


def test_show_a_gguf_file(hub_cache, capsys, qwen3_folder, tmp_path):
    """By its path, also of one that is damaged, and in the cache by its quantization."""
    snapshot = hub_cache / "snapshots" / HASH
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).unlink()
    write_gguf(snapshot / "m-F16.gguf", qwen3_folder, "Qwen3", FORMATS.F16)
    write_gguf(snapshot / "m-Q8_0.gguf", qwen3_folder, "Qwen3", FORMATS.Q8_0)
    for name, quantized in ((str(snapshot / "m-F16.gguf"), "no"), (f"{NAME}:q8_0", "Q8_0")):
        assert main(["show", name, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["layers"], facts["quantized"], facts["runs"]) == (3, quantized, "yes")
        assert facts["weights_bytes"] == Path(facts["file"]).stat().st_size
    assert main(["show", NAME]) == USER_ERROR
    assert "holds 2 models: m-F16.gguf, m-Q8_0.gguf" in capsys.readouterr().err
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\3")
    assert main(["show", str(tmp_path / "cut.gguf")]) == 0
    assert "cut.gguf is damaged" in capsys.readouterr().out


def test_a_path_is_not_to_be_pulled(tmp_path, capsys):
    for command in ("show", "rm"):
        assert main([command, str(tmp_path / "no" / "file.gguf")]) == USER_ERROR
        assert "is no file or folder that exists, and no hub id" in capsys.readouterr().err
    (tmp_path / "a.gguf").touch()
    assert main(["rm", str(tmp_path / "a.gguf")]) == USER_ERROR
    assert "a.gguf is a file, not a model of the hub" in capsys.readouterr().err


def test_remove(hub_cache, capsys):
    assert main(["rm", "acme/other"]) == USER_ERROR
    assert "holds no model 'acme/other'" in capsys.readouterr().err
    assert main(["rm", NAME]) == 0
    assert f"removed {NAME}" in capsys.readouterr().out
    assert not hub_cache.exists() and cached_models() == []
    with pytest.raises(ModelLoadError, match="holds no model"):
        remove_model(NAME)


def test_no_cache_at_all(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        huggingface_hub, "scan_cache_dir", lambda: huggingface_hub.utils.scan_cache_dir(tmp_path / "no")
    )
    assert main(["list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("name", ["demo", "./x", "a/b/c"])
def test_only_hub_ids_are_fetched_and_removed(name, capsys):
    for command in ("pull", "rm"):
        assert main([command, name]) == USER_ERROR
        assert "folder, not a model" in (told := capsys.readouterr().err) or "no hub id" in told
