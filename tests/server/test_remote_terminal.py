"""`lullm run` and `lullm chat` with --url: a running server answers, and no engine is built."""

import io
import sys

import pytest

from lullm.cli.main import main
from lullm.cli.remote.server import RemoteServer
from lullm.errors import LullmError


def test_run(server, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    assert main(["run", "--url", server.url, "-n", "12", "hello", "--verbose"]) == 2  # the word is the model's name
    assert "the model 'hello' does not exist here" in capsys.readouterr().err
    assert main(["run", "--url", server.url, "-n", "12", "say hello", "--verbose"]) == 0
    out, err = capsys.readouterr()
    assert len(out) == 13 and "12 new, first after" in err
    assert main(["run", "--url", server.url, "-n", "12", "--raw", "say hello"]) == 0
    assert len(capsys.readouterr().out) == 13


def test_it_draws_as_the_terminal_does(server, capsys):
    """The server's OpenAI endpoints leave to vLLM's defaults what the model leaves open; a terminal does not."""
    assert main(["run", "--url", server.url, "-n", "3", "--top-k", "7", "say hello"]) == 0
    params = server.engine.seen[-1][1]
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 7, 0.95, 0.05)


def test_chat_remembers(server, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("say hello\nagain\n"))
    assert main(["chat", "--url", server.url, "-n", "5"]) == 0
    out, err = capsys.readouterr()
    assert len(out) == 12 and "Talk to" in err


def test_the_url_of_openais_clients(server, capsys):
    assert main(["run", "--url", f"{server.url}/v1/", "-n", "5", "say hello"]) == 0
    assert len(capsys.readouterr().out) == 6


def test_a_conversation_outlives_what_the_server_refuses(server, monkeypatch, capsys):
    """It ended, with all that was said, when it grew too long, or when the server was busy for a moment."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"say hello\n{'long ' * 9000}\nagain\nbusy\nagain\n"))
    sent = RemoteServer.stream

    def stream(self, path, body):
        if body["messages"][-1]["content"] == "busy":
            raise LullmError("the server answers 429: it is full")
        return sent(self, path, body)

    monkeypatch.setattr(RemoteServer, "stream", stream)
    assert main(["chat", "--url", server.url, "-n", "5"]) == 0
    out, err = capsys.readouterr()
    assert len(out.split("\n")) == 4 and err.count("/reset begins anew") == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("busy\n"))
    assert main(["chat", "--url", server.url]) == 2, "nothing to lose yet"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "--max-model-len", "9", "say hello"], "--max-model-len: for an engine in this process"),
        (["run", "--temp", "-1", "say hello"], "--temperature must be"),
    ],
)
def test_mistakes(server, argv, words, capsys):
    assert main([argv[0], "--url", server.url, *argv[1:]]) == 2
    assert words in capsys.readouterr().err


def test_a_key_without_a_server(capsys):
    assert main(["run", "--api-key", "k", "say hello"]) == 2
    assert "name it by --url" in capsys.readouterr().err


def test_an_engine_that_dies_in_the_middle(start, scripted, capsys):
    running = start(scripted())
    assert main(["run", "--url", running.url, "crash here"]) == 2
    err = capsys.readouterr().err
    assert f"lullm: error: the server on {running.url} says: the engine failed" in err


def test_nothing_listens(capsys):
    assert main(["run", "--url", "http://127.0.0.1:9", "say hello"]) == 2
    assert "nothing listens on http://127.0.0.1:9" in capsys.readouterr().err
