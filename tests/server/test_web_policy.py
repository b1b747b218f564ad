"""Which hosts and origins a server without keys takes."""

import socket

import pytest
from starlette.datastructures import Headers

from lullm.server.error import ApiError
from lullm.server.gate.web_policy import WebPolicy, host_name


def passes(policy: WebPolicy, **headers: str) -> bool:
    try:
        policy.check(Headers(headers))
    except ApiError as error:
        assert error.status == 403
        return False
    return True


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:8000", "[::1]:8000", "localhost", "LOCALHOST.:80", "a.localhost", "192.168.1.5:8000"),
        *("[fe80::1]:80", "served.example:8000", socket.gethostname()),
    ],
)
def test_own_hosts(host):
    assert passes(WebPolicy("served.example", (), ()), host=host)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", ""),
        *("localhost@evil.example", "localhost:80:90", "[::1", "a b", "127.0.0.\u00b9", "0x7f.1"),
    ],
)
def test_foreign_hosts(host):
    assert not passes(WebPolicy("127.0.0.1", (), ()), host=host)


def test_a_request_without_host_passes():
    assert passes(WebPolicy("127.0.0.1", (), ()))


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:5173", "http://192.168.1.5:8000", "http://mine"],
)
def test_own_origins(origin):
    assert passes(WebPolicy("0.0.0.0", (), ("http://mine",)), host="192.168.1.5:8000", origin=origin)


@pytest.mark.parametrize(
    "origin",
    [
        *("http://page", "null", "", "file://", "http://192.168.1.6", "http://mine:80", "ftp://localhost"),
        *("http://localhost.page", "http://localhost@page", "http://203.0.113.5:8000"),
    ],
)
def test_foreign_origins(origin):
    assert not passes(WebPolicy("0.0.0.0", (), ("http://mine",)), host="192.168.1.5:8000", origin=origin)


@pytest.mark.parametrize(("text", "name"), [("A.b.:80", "a.b"), ("[::1]:", "::1"), ("", None), ("a/b", None)])
def test_host_name(text, name):
    assert host_name(text) == name
