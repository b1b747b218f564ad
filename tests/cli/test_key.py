"""Keys from flags, files and the environment."""

import argparse

import pytest

from lullm.cli.flag.key import MAX_FILE_BYTES, gather_keys, read_keys
from lullm.cli.main import build_parser, main
from lullm.errors import ConfigError

NAME = "LULLM_TEST_KEY"


def parse(*argv: str) -> argparse.Namespace:
    return build_parser().parse_args(argv)


def test_all_sources_together(tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("one\r\n\n  two \n")
    monkeypatch.setenv(NAME, "three")
    assert gather_keys(["zero", "one"], [str(tmp_path / "keys")], NAME) == ("zero", "one", "two", "three")
    monkeypatch.delenv(NAME)
    assert gather_keys([], [], NAME) == ()


@pytest.mark.parametrize("content", [b"", b"\n \n", "é".encode(), b"k\n" * MAX_FILE_BYTES])
def test_a_file_that_is_none(tmp_path, content):
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(ConfigError, match="key file"):
        read_keys(str(tmp_path / "keys"))


@pytest.mark.parametrize("argv", [("--api-key-file", "/no/such/file"), ("--admin-key-file", "/no/such/file")])
def test_a_missing_file_does_not_open_the_server(argv, capsys):
    assert main(["serve", "--port", "0", *argv]) == 2
    assert "/no/such/file" in capsys.readouterr().err


def test_an_empty_variable_does_not_open_the_server(monkeypatch, capsys):
    monkeypatch.setenv("LULLM_API_KEY", "")
    assert main(["serve", "--port", "0"]) == 2
    assert "an API key must be" in capsys.readouterr().err


def test_the_commands_take_the_key_from_the_environment(monkeypatch):
    monkeypatch.setenv("LULLM_API_KEY", "api")
    assert (parse("ps").key, parse("wake").key, parse("ps", "--api-key", "x").key) == ("api", "api", "x")
    monkeypatch.setenv("LULLM_ADMIN_KEY", "admin")
    assert (parse("ps").key, parse("wake").key, parse("sleep").key) == ("api", "admin", "admin")
