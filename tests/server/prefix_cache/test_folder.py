"""`--prefix-cache-folder`: what a server had cached, the next one finds; and it starts and ends if it cannot."""

import asyncio
import logging
import threading

import pytest

from lullm import AsyncLLMEngine
from lullm.cli.main import main
from lullm.config.engine import EngineConfig
from lullm.engine.process.client import ProcessClient
from lullm.server.http_server import HttpServer
from lullm.server.listen.listener import Listener
from lullm.server.options import ServerOptions

OPTIONS = {
    "dtype": "float32",
    "num_gpu_blocks_override": 64,
    "max_model_len": 256,
    "served_model_name": "tiny",
    "enable_sleep_mode": True,
    "threads": 1,
}
ASK = {"model": "tiny", "max_tokens": 8, "temperature": 0, "prompt": "a conversation that goes on after a restart " * 3}


@pytest.fixture
def serve(qwen3_folder, start, tmp_path):
    def serve_tiny(client=AsyncLLMEngine, **options):
        engine = client(EngineConfig(model=str(qwen3_folder), **OPTIONS | options))
        return start(engine, prefix_cache_folder=str(tmp_path / "prefixes"))

    return serve_tiny


def ask(server, prompt=ASK["prompt"]):
    """The text, and how many tokens of the prompt were cached."""
    with server.http() as http:
        answer = http.post("/v1/completions", json=ASK | {"prompt": prompt}).json()
    details = answer["usage"].get("prompt_tokens_details") or {}
    return answer["choices"][0]["text"], details.get("cached_tokens", 0)


def end(server):
    server.signal()
    server.join(20)


@pytest.mark.parametrize("client", [AsyncLLMEngine, ProcessClient])
def test_the_next_server_finds_them(serve, client, tmp_path, caplog):
    first = serve(client)
    text, num_cached = ask(first)
    assert not num_cached
    end(first)
    assert (tmp_path / "prefixes" / "hibernation.json").is_file()
    again, num_cached = ask(serve(client))
    assert again == text and num_cached > 64
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_sleeping_server_leaves_what_it_keeps(serve):
    first = serve()
    text, _ = ask(first)
    with first.http() as http:
        assert http.post("/sleep", json={"level": 1, "keep_prefix_cache": True}).status_code == 200
    end(first)
    again, num_cached = ask(serve())
    assert again == text and num_cached > 64


def test_nothing_takes_the_place_of_nothing(serve, tmp_path):
    """A sleep that dropped the prefixes, or a server that nobody asked, leaves those of the server before."""
    first = serve()
    text, _ = ask(first)
    end(first)
    written = (tmp_path / "prefixes" / "hibernation.json").stat().st_mtime_ns
    other = serve()
    with other.http() as http:
        assert http.post("/sleep", json={"level": 2}).status_code == 200
    end(other)
    assert other.engine.sleep_state == "discard_all", "it is not woken to write nothing"
    assert (tmp_path / "prefixes" / "hibernation.json").stat().st_mtime_ns == written
    again, num_cached = ask(serve())
    assert again == text and num_cached > 64


def test_a_folder_of_another_engine_is_worth_a_warning(serve, caplog):
    first = serve()
    text, _ = ask(first)
    end(first)
    other = serve(block_size=8)
    assert ask(other) == (text, 0)
    assert "empty prefix cache" in caplog.text and "block_size" in caplog.text
    end(other)
    assert ask(serve(block_size=8))[1] > 64, "it is replaced"


def test_a_damaged_folder_is_worth_a_warning(serve, tmp_path, caplog):
    first = serve()
    text, _ = ask(first)
    end(first)
    path = tmp_path / "prefixes" / "kv-0.bin"
    path.write_bytes(path.read_bytes()[:-4096])
    assert ask(serve()) == (text, 0)
    assert "empty prefix cache" in caplog.text and "damaged" in caplog.text


@pytest.fixture
def loading(scripted, monkeypatch, tmp_path):
    """An engine that fails to load the prefixes in `prefixes` with the given error."""

    def fail_with(error):
        engine = scripted()

        async def load(path):
            raise error

        monkeypatch.setattr(engine, "load_prefix_cache", load, raising=False)
        (tmp_path / "prefixes").mkdir()
        (tmp_path / "prefixes" / "hibernation.json").touch()
        return engine

    return fail_with


def test_a_folder_that_the_system_refuses_is_worth_a_warning(start, loading, tmp_path, caplog):
    engine = loading(PermissionError(13, "Permission denied"))
    with start(engine, prefix_cache_folder=str(tmp_path / "prefixes")).http() as http:
        assert http.get("/health").status_code == 200
    assert "empty prefix cache" in caplog.text and "Permission denied" in caplog.text


def test_an_engine_does_not_outlive_a_failed_start(loading, tmp_path):
    """Its thread would keep the process from ending."""
    engine = loading(RuntimeError("a bug"))
    options = ServerOptions(port=0, prefix_cache_folder=str(tmp_path / "prefixes"))

    async def serve_it():
        with Listener(options) as listener:
            await HttpServer(engine, options, listener).serve(print)

    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(serve_it())
    assert engine.shutdowns == [False]


def test_what_cannot_be_saved_does_not_hold_the_end_up(serve, tmp_path, caplog):
    server = serve()
    ask(server)
    (tmp_path / "prefixes").write_text("something else")
    end(server)
    assert "could not be saved" in caplog.text and "something else lies there" in caplog.text
    assert (tmp_path / "prefixes").read_text() == "something else"


def test_a_second_signal_does_not_wait_for_the_disk(serve, monkeypatch):
    server = serve()
    ask(server)
    writing, written = threading.Event(), threading.Event()

    def write(path):
        writing.set()
        assert written.wait(20)

    monkeypatch.setattr(server.engine._engine, "save_prefix_cache", write)
    server.signal()
    assert writing.wait(10)
    server.signal()
    written.set()
    server.join(20)


def test_what_cannot_work_is_refused_before_the_engine_starts(qwen3_folder, tmp_path, capsys):
    (tmp_path / "file").write_text("text")
    cases = {
        ("--prefix-cache-folder", tmp_path / "file"): "something else lies there",
        ("--prefix-cache-folder", tmp_path / "none" / "p"): "make it first",
        ("--prefix-cache-folder", tmp_path / "p", "--no-enable-prefix-caching"): "turns off",
        ("--prefix-cache-folder", tmp_path / "p", "--data-parallel-size", "2"): "several",
        ("--prefix-cache-folder", tmp_path / "p", "--distributed-executor-backend", "ray"): "ray",
    }
    for flags, message in cases.items():
        assert main(["serve", str(qwen3_folder), "--port", "0", *map(str, flags)]) == 2
        assert message in capsys.readouterr().err
    several = ["serve", "a=demo", "b=demo", "--memory-budget", "4GiB", "--port", "0"]
    assert main([*several, "--prefix-cache-folder", str(tmp_path / "p")]) == 2
    assert "one model" in capsys.readouterr().err
