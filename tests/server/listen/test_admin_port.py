"""The sleep endpoints on a port of their own."""

import logging
import socket

import httpx
import pytest

from lullm.cli.main import main
from lullm.config.engine import EngineConfig
from lullm.errors import ConfigError
from lullm.server.gate.gate import SLEEP_PATHS
from lullm.server.listen.listener import Listener
from lullm.server.options import ServerOptions


def test_they_answer_there_alone(start, scripted, caplog, capsys):
    with caplog.at_level(logging.INFO, "lullm"):
        server = start(scripted(enable_sleep_mode=True), admin_port=0)
    assert f"the sleep endpoints answer on {server.admin_url} alone" in caplog.text
    with server.http() as http, httpx.Client(base_url=server.admin_url, timeout=20) as admin:
        for path in sorted(SLEEP_PATHS):
            for method in ("GET", "POST"):
                answer = http.request(method, path)
                assert answer.status_code == 404 and answer.json()["error"]["code"] == "admin_port_only", path
        assert server.engine.sleeps == []
        assert admin.post("/sleep").status_code == 200 and len(server.engine.sleeps) == 1
        assert admin.post("/wake_up").status_code == 200
        body = {"prompt": "x", "max_tokens": 1}
        for each in (http, admin):
            assert each.get("/health").status_code == 200
            assert each.post("/v1/completions", json=body).status_code == 200
    assert main(["sleep", "--url", server.admin_url]) == 0
    assert main(["wake", "--url", server.url]) != 0
    assert "--admin-port" in capsys.readouterr().err


def test_headers_do_not_move_a_request(start, scripted):
    """The port is that of the socket, whatever the request says."""
    server = start(scripted(enable_sleep_mode=True), admin_port=0)
    port = server.admin_url.rpartition(":")[2]
    headers = {"Host": f"127.0.0.1:{port}", "X-Forwarded-Port": port, "X-Forwarded-Host": f"127.0.0.1:{port}"}
    with server.http() as http:
        assert http.post("/sleep", headers=headers).status_code == 404
        assert http.post(f"{server.url}//sleep", headers=headers).status_code == 404
        assert http.post("/%73leep", headers=headers).status_code == 404
    assert server.engine.sleeps == []


def test_keys_hold_there(start, scripted):
    server = start(scripted(enable_sleep_mode=True), admin_port=0, api_keys=("k",), admin_keys=("a",))
    with httpx.Client(base_url=server.admin_url, timeout=20) as admin:
        assert admin.post("/sleep", headers={"Authorization": "Bearer k"}).status_code == 401
        assert admin.post("/sleep", headers={"Authorization": "Bearer a"}).status_code == 200
        assert admin.get("/v1/models").status_code == 401


def test_with_a_unix_socket(start, scripted, tmp_path):
    path = str(tmp_path / "lullm.sock")
    server = start(scripted(enable_sleep_mode=True), uds=path, admin_port=0)
    transport = httpx.HTTPTransport(uds=path)
    with (
        httpx.Client(transport=transport, base_url="http://x") as http,
        httpx.Client(base_url=server.admin_url) as admin,
    ):
        assert http.post("/sleep").status_code == 404
        assert admin.post("/sleep").status_code == 200


def test_the_page_has_buttons_there_alone(start, scripted, read_events):
    server = start(scripted(enable_sleep_mode=True), admin_port=0)
    for url, has_sleep_mode in ((server.url, False), (server.admin_url, True)):
        with httpx.Client(base_url=url, timeout=20) as http, http.stream("GET", "/page/events") as response:
            line = next(line for line in response.iter_lines() if line.startswith("data: "))
        assert f'"has_sleep_mode":{str(has_sleep_mode).lower()}' in line


@pytest.mark.parametrize(
    ("options", "can_sleep", "words"),
    [
        ({"admin_port": 0}, False, "an admin port is for the sleep endpoints; they need --enable-sleep-mode"),
        ({"host": "0.0.0.0"}, True, "an --admin-port, or leave --host at"),
        ({"host": "0.0.0.0", "admin_port": 0}, True, None),
        ({"admin_port": 0, "admin_host": "0.0.0.0"}, True, "set an --admin-key, or leave --admin-host at"),
        ({"admin_port": 0, "admin_host": "0.0.0.0", "admin_keys": ("a",)}, True, None),
    ],
)
def test_exposure(options, can_sleep, words):
    given = ServerOptions(port=0, **options)
    with Listener(given) as listener:
        if words is None:
            listener.check_exposure(given, EngineConfig(enable_sleep_mode=can_sleep))
        else:
            with pytest.raises(ConfigError, match=words):
                listener.check_exposure(given, EngineConfig(enable_sleep_mode=can_sleep))


def test_wrong_combinations():
    with pytest.raises(ConfigError, match="admin_host is the address of admin_port"):
        ServerOptions(admin_host="127.0.0.1")
    with pytest.raises(ConfigError, match="another port"):
        ServerOptions(port=8001, admin_port=8001)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="another --admin-port"):
        Listener(ServerOptions(port=0, admin_port=taken.getsockname()[1]))
    with pytest.raises(ConfigError, match="choose another --host"):  # of a network for documentation, RFC 5737
        Listener(ServerOptions(host="192.0.2.1", port=0))
