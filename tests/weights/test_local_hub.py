"""`lullm pull`, `list` and `rm` over a hub on this machine: what is fetched, what goes on, what each refusal says."""

from functools import partial
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from kit.folder.local_hub import COMMIT, LocalHub

from lullm.cli.main import USER_ERROR, main
from lullm.config.model import ModelConfig

NAME = "acme/model-1b"


@pytest.fixture
def hub(monkeypatch, tmp_path, qwen3_folder):
    files = {path.name: path.read_bytes() for path in qwen3_folder.iterdir() if path.is_file()}
    extra = {"original/consolidated.00.pth": b"x" * 99, "README.md": b"#", "pytorch_model.bin": b"y"}
    extra["additional_chat_templates/tool_use.jinja"] = b"T"
    extra["merges.txt"] = b"#version: 0.2"
    extra |= {"qwen.tiktoken": b"IQ== 0\n", "tiktoken.model": b"Ig== 0\n"}
    found = LocalHub(NAME, files | extra)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", found.url)
    template = found.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", partial(huggingface_hub.scan_cache_dir, tmp_path / "hub"))
    huggingface_hub.close_session()  # it may have been made without a network
    yield found
    huggingface_hub.close_session()
    found.close()


def test_pull_list_and_remove(hub, capsys, qwen3_folder):
    assert main(["pull", NAME]) == 0
    folder = capsys.readouterr().out.strip()
    assert folder.endswith(COMMIT) and ModelConfig.from_folder(qwen3_folder) == ModelConfig.from_folder(
        type(qwen3_folder)(folder)
    )
    fetched = {path.rsplit("/", 1)[1] for method, path, _ in hub.requests if method == "GET" and "/resolve/" in path}
    assert {"config.json", "model.safetensors", "tokenizer.json", "merges.txt", "tool_use.jinja"} <= fetched
    assert {"qwen.tiktoken", "tiktoken.model"} <= fetched
    assert fetched.isdisjoint({"README.md", "pytorch_model.bin", "consolidated.00.pth"})
    count = len(hub.requests)
    assert main(["pull", NAME]) == 0 and not any(m == "GET" and "/resolve/" in p for m, p, _ in hub.requests[count:])
    capsys.readouterr()
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert NAME in listed and "main" in listed and "incomplete" not in listed
    assert main(["rm", NAME]) == 0 and main(["list"]) == 0
    assert NAME not in capsys.readouterr().out.splitlines()[-1]


OWN_LAYOUT = {"params.json": b'{"dim": 64}', "consolidated.safetensors": b"x", "tekken.json": b"{}"}


def test_a_model_in_mistrals_own_layout(hub, capsys):
    hub.files = OWN_LAYOUT
    assert main(["pull", NAME]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert sorted(path.name for path in folder.iterdir()) == sorted(OWN_LAYOUT)
    count = len(hub.requests)
    assert main(["pull", NAME]) == 0 and not any(m == "GET" and "/resolve/" in p for m, p, _ in hub.requests[count:])
    assert main(["list"]) == 0 and "incomplete" not in capsys.readouterr().out


def test_a_model_in_both_layouts(hub):
    """Its weights are fetched once."""
    hub.files |= OWN_LAYOUT
    assert main(["pull", NAME]) == 0
    fetched = {path.rsplit("/", 1)[1] for method, path, _ in hub.requests if method == "GET" and "/resolve/" in path}
    assert "consolidated.safetensors" not in fetched and {"model.safetensors", "tekken.json"} <= fetched


def test_a_download_that_breaks_is_gone_on_with(hub, capsys, monkeypatch):
    """The rest alone is asked for: by the client itself, or by the next pull."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)  # what has come is kept in such pieces
    hub.breaks_after = len(hub.files["model.safetensors"]) // 2
    if main(["pull", NAME]) != 0:
        assert "lullm" in capsys.readouterr().err
        assert main(["pull", NAME]) == 0
    asked = [headers.get("Range") for _, path, headers in hub.requests if path.endswith("model.safetensors")]
    assert any(each and not each.startswith("bytes=0-") for each in asked)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"refuses": 404}, [], "no such model on the hub"),
        ({"refuses": 429}, [], "fewer requests than it got"),
        ({"token": "secret"}, [], "wants an account for acme/model-1b; set HF_TOKEN"),
        ({}, ["--revision", "v9"], "has no revision 'v9'"),
    ],
    ids=str,
)
def test_refusals(hub, capsys, monkeypatch, change, options, message):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    for name, value in change.items():
        setattr(hub, name, value)
    assert main(["pull", NAME, *options]) == USER_ERROR
    assert message in capsys.readouterr().err


def test_the_account_of_a_token(hub, monkeypatch, capsys):
    hub.token = "secret"
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert main(["pull", NAME, "--revision", COMMIT]) == 0
    monkeypatch.setenv("HF_TOKEN", "wrong")
    assert main(["pull", NAME]) == USER_ERROR
    assert "the hub refuses HF_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize("shown", ["--json", "--len=64"])
def test_a_plan_fetches_the_config_alone(hub, capsys, monkeypatch, qwen3_folder, shown):
    """It downloaded the whole model, of hundreds of gigabytes."""
    known = ["--memory", "2GiB", "--bandwidth", "20", "--tflops", "1", shown]
    assert main(["plan", NAME, *known]) == 0
    found, said = capsys.readouterr()
    fetched = {path.rsplit("/", 1)[1] for _, path, _ in hub.requests if "/resolve/" in path}
    assert fetched == {"config.json"}
    assert f"Of {NAME} config.json alone is read" in said
    count = len(hub.requests)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # the second time needs no network
    assert main(["plan", NAME, *known]) == 0 and capsys.readouterr().out == found and len(hub.requests) == count
    assert main(["plan", str(qwen3_folder), *known]) == 0 and capsys.readouterr().out == found
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert main(["list"]) == 0 and "incomplete" in capsys.readouterr().out
    assert main(["pull", NAME]) == 0 and main(["list"]) == 0  # the rest is fetched
    assert "incomplete" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [({"refuses": 404}, "no such model on the hub"), ({"token": "x"}, "set HF_TOKEN"), ({"files": {}}, "no config")],
    ids=str,
)
def test_a_plan_is_refused_as_a_pull(hub, capsys, monkeypatch, change, message):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    for name, value in change.items():
        setattr(hub, name, value)
    assert main(["plan", NAME]) == USER_ERROR
    assert message in capsys.readouterr().err


def test_a_plan_without_network_and_cache(hub, capsys, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["plan", NAME]) == USER_ERROR
    assert "could not be fetched from the hub" in capsys.readouterr().err and not hub.requests
