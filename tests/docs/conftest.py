"""What the pages name: a folder of models, and a server."""

import functools
import gc
import os
import subprocess
import sys

import pytest
from kit.ready_process import ReadyPopen

from lullm.cli.plan import command


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The URL of a real server, with what any page asks of one."""
    command = [
        sys.executable,
        "-m",
        "lullm",
        "serve",
        "demo",
        "--port",
        "0",
        "--any-model-name",
        "--log-level",
        "error",
    ]
    command += ["--tool-call-parser", "hermes", "--enable-sleep-mode", "--sleep-after", "1h:1"]
    command += ["--sleep-dir", str(tmp_path_factory.mktemp("sleep"))]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with ReadyPopen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A folder with what the pages name; every model in it is the demo model."""
    from kit.folder.gguf_files import write_gguf

    from lullm.weights.folder import resolve_model

    folder, demo = tmp_path_factory.mktemp("world"), resolve_model("demo")
    for name in ("path/to/folder", "Qwen/Qwen3-0.6B", "MODEL", "A", "B", "FOLDER"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(demo)
    (folder / "config.json").symlink_to(demo / "config.json")
    write_gguf(folder / "model-Q4_K_M.gguf", demo, "Qwen3")
    (folder / "question.txt").write_text("What is 17 + 25?\n")
    (folder / "requests.jsonl").write_text(
        '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 9}}\n'
    )
    (folder / "lullm.yaml").write_text("model: path/to/folder\nmax-model-len: 256\n")
    return folder


@pytest.fixture(autouse=True, scope="session")
def _this_machine_is_measured_once():
    """Each `lullm plan` of a page takes 1.6 s for it; tests/cli/plan/test_roofline.py measures anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "measure", functools.cache(command.measure))
        yield


@pytest.fixture
def here(world, monkeypatch):
    """In that folder; a server that is started says that it is ready, and ends."""
    monkeypatch.chdir(world)

    async def served_at_once(engine, options, listener, announce):
        await engine.shutdown()
        announce("http://127.0.0.1:8000")

    monkeypatch.setattr("lullm.server.http_server.serve_until_signal", served_at_once)
    yield
    gc.unfreeze()  # what `serve` has frozen
