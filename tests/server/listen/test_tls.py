"""TLS: a request over it, clients' certificates, and files that are wrong."""

import socket
import ssl

import httpx
import pytest
import trustme

from lullm.cli.main import main
from lullm.errors import ConfigError
from lullm.server.listen.listener import Listener
from lullm.server.options import ServerOptions

LOCKED = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAjt+QjR3C/vgQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEJkwtnA5+yP42olC5eQxof0EgZAD
E8PV+OlLvMwsqoSrgqdFWqvGeVBR63iBco9UqT89CRFYNMYKphQ19njStLrl98ee
tcwiIuBnpEd0DMCOnPyRHjYqfg2DdwkvccNFc3OeToeph/zq4MRfb0YMR6sfXRhF
Mw/UXOLQzSYASXKiqeffd4sDqTDo5Qnsu1WphS+1om1w3kl+b4NXSpwlLTz+rFE=
-----END ENCRYPTED PRIVATE KEY-----
"""
"""A key of nobody's with a passphrase: `openssl genpkey -algorithm EC -aes256`."""


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority, tmp_path_factory):
    """Paths of a server's certificate, its key, both in one file, another's key, and the authority."""
    folder = tmp_path_factory.mktemp("tls")
    own, other = authority.issue_cert("localhost", "127.0.0.1"), authority.issue_cert("other.example")
    paths = {name: str(folder / f"{name}.pem") for name in ("cert", "key", "both", "other_key", "ca", "text", "locked")}
    own.cert_chain_pems[0].write_to_path(paths["cert"])
    own.private_key_pem.write_to_path(paths["key"])
    own.private_key_and_cert_chain_pem.write_to_path(paths["both"])
    other.private_key_pem.write_to_path(paths["other_key"])
    authority.cert_pem.write_to_path(paths["ca"])
    for name, text in (("text", "not a certificate"), ("locked", LOCKED)):
        with open(paths[name], "w") as file:
            file.write(text)
    return paths


def client(url: str, authority: trustme.CA, with_certificate: bool = False) -> httpx.Client:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if with_certificate:
        authority.issue_cert("me@example.org").configure_cert(context)
    return httpx.Client(base_url=url, verify=context, timeout=20)


def test_requests_and_streams(start, scripted, authority, files, read_events):
    server = start(scripted(), ssl_certfile=files["cert"], ssl_keyfile=files["key"])
    assert server.url.startswith("https://127.0.0.1:")
    with client(server.url, authority) as http:
        body = {"prompt": "x", "max_tokens": 3}
        whole = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
            events = read_events(response)
        assert "".join(e["choices"][0]["text"] for e in events if e != "[DONE]") == whole
        assert http.post("/v1/completions", content=b" " * (9 << 20)).status_code == 413
    with pytest.raises(httpx.ConnectError, match="(?i)certificate"), httpx.Client(base_url=server.url) as stranger:
        stranger.get("/health")
    with httpx.Client(base_url=server.url.replace("https", "http")) as plain, pytest.raises(httpx.HTTPError):
        plain.get("/health")


def shown_certificate(server) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = server.url.removeprefix("https://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain, context.wrap_socket(plain) as sock:
        found = sock.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_a_certificate_is_read_anew(start, scripted, authority, tmp_path, caplog):
    path = tmp_path / "both.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(path))
    server = start(scripted(), ssl_certfile=str(path))
    first = shown_certificate(server)
    path.write_text("half a file")
    server._server.reload_certificate()
    assert shown_certificate(server) == first and "stays as it was" in caplog.text
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(path))
    server._server.reload_certificate()
    assert shown_certificate(server) != first


def test_authorities_are_read_anew(start, scripted, authority, files, tmp_path):
    """One that is not in the file any more had its clients let in until the process ended."""
    path, later = tmp_path / "ca.pem", trustme.CA()
    authority.cert_pem.write_to_path(str(path))
    server = start(scripted(), ssl_certfile=files["both"], ssl_ca_certs=str(path), ssl_cert_reqs=2)

    def enters(issuer: trustme.CA) -> bool:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        issuer.issue_cert("me@example.org").configure_cert(context)
        try:
            with httpx.Client(base_url=server.url, verify=context, timeout=20) as http:
                return http.get("/health").status_code == 200
        except httpx.HTTPError:
            return False

    for known, unknown in ((authority, later), (later, authority), (authority, later)):
        known.cert_pem.write_to_path(str(path))
        server._server.reload_certificate()
        assert enters(known) and not enters(unknown)


def test_the_wrong_scheme_is_named(start, scripted, files, capsys):
    server = start(scripted(), ssl_certfile=files["both"])
    plain = server.url.replace("https", "http")
    assert main(["ps", "--url", plain]) == 2
    assert f"its URL is {server.url}" in capsys.readouterr().err
    other = start(scripted())
    assert main(["ps", "--url", other.url.replace("http", "https")]) == 2
    assert f"is its URL {other.url}?" in capsys.readouterr().err


def test_old_versions_are_refused(files):
    with Listener(ServerOptions(port=0, ssl_certfile=files["both"])) as listener:
        assert listener.tls is not None and listener.tls.minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(("required", "passes_without"), [(1, True), (2, False)])
def test_clients_with_certificates(start, scripted, authority, files, required, passes_without):
    server = start(
        scripted(), ssl_certfile=files["both"], ssl_ca_certs=files["ca"], ssl_cert_reqs=required, max_connections=1
    )
    with client(server.url, authority, with_certificate=True) as http:
        assert http.get("/health").status_code == 200
    with client(server.url, authority) as http:
        if passes_without:
            assert http.get("/health").status_code == 200
        else:
            with pytest.raises(httpx.HTTPError):
                http.get("/health")
    stranger = trustme.CA()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    stranger.issue_cert("you@example.org").configure_cert(context)
    with httpx.Client(base_url=server.url, verify=context) as http, pytest.raises(httpx.HTTPError):
        http.get("/health")


def test_the_commands_reach_it(start, scripted, authority, files, monkeypatch, capsys):
    server = start(scripted(), ssl_certfile=files["both"])
    assert main(["ps", "--url", server.url]) != 0
    assert "SSL_CERT_FILE" in capsys.readouterr().err, "the error says how to trust a certificate of one's own"
    monkeypatch.setenv("SSL_CERT_FILE", files["ca"])
    assert main(["ps", "--url", server.url]) == 0
    assert "scripted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"ssl_certfile": "cert", "ssl_keyfile": "other_key"}, "the key is not that of the certificate"),
        ({"ssl_certfile": "text"}, "not in PEM's form"),
        ({"ssl_certfile": "cert"}, "no private key in it; give --ssl-keyfile"),
        ({"ssl_certfile": "cert", "ssl_keyfile": "missing"}, "No such file"),
        ({"ssl_certfile": "cert", "ssl_keyfile": "locked"}, "without a passphrase"),
        ({"ssl_certfile": "both", "ssl_ca_certs": "text", "ssl_cert_reqs": 2}, "ssl_ca_certs"),
        ({"ssl_keyfile": "key"}, "ssl_keyfile needs ssl_certfile"),
        ({"ssl_ca_certs": "ca", "ssl_cert_reqs": 2}, "ssl_ca_certs needs ssl_certfile"),
        ({"ssl_certfile": "both", "ssl_cert_reqs": 2}, "ssl_cert_reqs needs ssl_ca_certs"),
        ({"ssl_certfile": "both", "ssl_ca_certs": "ca"}, "checks nothing with ssl_cert_reqs 0"),
        ({"ssl_certfile": "both", "ssl_cert_reqs": 3}, "at most 2"),
    ],
)
def test_wrong_files_and_combinations(files, names, words):
    """They are found before a model is loaded; a key with a passphrase would have asked for it on the terminal."""
    given = {
        name: files.get(value, "/no/such.pem") if isinstance(value, str) else value for name, value in names.items()
    }
    with pytest.raises(ConfigError, match=words):
        Listener(ServerOptions(port=0, **given))


def test_the_command_line_names_its_flags(capsys):
    assert main(["serve", "--ssl-keyfile", "key.pem"]) == 2
    assert "--ssl-keyfile needs --ssl-certfile" in capsys.readouterr().err
