"""A server in a file: who can open it, what becomes of the file, and the commands that reach it."""

import os
import socket
import stat
import subprocess
import sys

import httpx
import pytest

from lullm.cli.main import main
from lullm.errors import ConfigError
from lullm.server.listen.unix_socket import bind_unix, remove_unix
from lullm.server.options import ServerOptions


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "lullm.sock")


def client(path: str, **headers: str) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://server", headers=headers, timeout=20)


def test_a_request_and_the_end(start, scripted, path):
    server = start(scripted(), uds=path)
    assert server.url == f"unix:{path}"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with client(path) as http:
        answer = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
        assert answer.status_code == 200, "the name 'server' in Host is nobody's, and no browser could send it here"
        foreign = http.post("/v1/completions", json={"prompt": "x"}, headers={"Origin": "https://evil.example"})
        assert foreign.json()["error"]["code"] == "foreign_origin", "a proxy may stand before the socket"
    server.stop()
    assert not os.path.exists(path)


def test_sleeping_needs_no_key_there(start, scripted, path, capsys):
    server = start(scripted(enable_sleep_mode=True), uds=path)
    for command in (["ps"], ["sleep"], ["wake"], ["run", "--raw", "hello there", "-n", "2"]):
        assert main([*command, "--url", server.url]) == 0
    assert "awake" in capsys.readouterr().out
    assert len(server.engine.sleeps) == 1


def test_keys_hold_there_too(start, scripted, path):
    start(scripted(), uds=path, api_keys=("k",))
    with client(path) as http:
        assert http.get("/v1/models").status_code == 401
        assert http.get("/v1/models", headers={"Authorization": "Bearer k"}).status_code == 200


def test_nobody_listens(path, capsys):
    assert main(["ps", "--url", f"unix:{path}"]) != 0
    assert f"nothing listens on unix:{path}" in capsys.readouterr().err
    assert main(["ps", "--url", "unix:"]) == 2
    assert "is not a URL like http://127.0.0.1:8000 or unix:" in capsys.readouterr().err


def test_a_dead_servers_file_is_replaced(path):
    program = (
        "import os, sys; from lullm.server.listen.unix_socket import bind_unix as b; s = b(sys.argv[1]); os._exit(9)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", program, path], env=env).returncode == 9
    before = os.stat(path)
    with bind_unix(path):
        after = os.stat(path)
        assert (before.st_ino, before.st_mtime_ns) != (after.st_ino, after.st_mtime_ns)
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(path)


def test_a_living_servers_file_is_not(path):
    """Also while it loads its model: it listens from the first moment, though nobody answers yet."""
    with bind_unix(path):
        with pytest.raises(ConfigError, match="another server listens there; choose another --uds"):
            bind_unix(path)
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(path)


def test_a_server_whose_queue_is_full_is_alive(path):
    with bind_unix(path) as sock:
        sock.listen(0)
        waiting = []
        try:
            while True:
                one = socket.socket(socket.AF_UNIX)
                waiting.append(one)
                one.setblocking(False)
                one.connect(path)
        except BlockingIOError:
            with pytest.raises(ConfigError, match="another server listens"):
                bind_unix(path)
        finally:
            for one in waiting:
                one.close()


def test_another_file_is_left_alone(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("precious")
    with pytest.raises(ConfigError, match="exists and is no socket"):
        bind_unix(str(file))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="exists and is no socket"):
        bind_unix(str(link))
    assert file.read_text() == "precious"


def test_paths_that_cannot_be(tmp_path):
    with pytest.raises(ConfigError, match="at most 107 bytes"):
        bind_unix(str(tmp_path / ("x" * 120)))
    with pytest.raises(ConfigError, match="No such file or directory"):
        bind_unix("no-such-folder/lullm.sock")


def test_the_file_of_a_successor_stays(path):
    """A server that ends late must not take away the file of the one that was started meanwhile."""
    first = bind_unix(path)
    inode = os.stat(path).st_ino
    os.rename(path, f"{path}.old")
    with bind_unix(path):
        remove_unix(first, path, inode)
        assert os.path.exists(path)


@pytest.mark.parametrize(
    "options",
    [{"port": 1234}, {"host": "0.0.0.0"}, {"ssl_certfile": "c.pem"}, {"admin_host": "0.0.0.0"}],
    ids=str,
)
def test_what_a_file_cannot_have(options):
    with pytest.raises(ConfigError, match="leave out|give both"):
        ServerOptions(uds="lullm.sock", **options)
