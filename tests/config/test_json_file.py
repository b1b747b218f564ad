"""Files of a model folder: what is not a regular file, too large or not UTF-8 is refused before it is read."""

import os

import pytest

from lullm.config.json_file import given_path, read_object, read_text
from lullm.errors import ModelLoadError


def test_text_and_object(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"é": 1}', encoding="utf-8")
    assert read_text(path) == '{"é": 1}' and read_object(path) == {"é": 1}
    link = tmp_path / "link.json"  # as the hub's cache stores files
    link.symlink_to(path)
    assert read_object(link) == {"é": 1}


def test_a_pair_of_surrogates_is_a_character(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(r'{"a": "\ud83d\ude00"}')
    assert read_object(path) == {"a": "\U0001f600"}


def test_a_byte_order_mark_is_not_read(tmp_path):
    """As editors on Windows put before a file that is saved with them."""
    path = tmp_path / "x.json"
    path.write_text('{"a": "\ufeff"}', encoding="utf-8-sig")
    assert read_text(path) == '{"a": "\ufeff"}' and read_object(path) == {"a": "\ufeff"}


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "a" * 300, "~nobody-of-this-name/a"])
def test_names_that_no_file_has(name):
    with pytest.raises(ModelLoadError, match="no path that can be read"):
        given_path(name)


def test_names_that_a_file_could_have(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for name in ("file", "nothing", "file/below", "Qwen/Qwen3-0.6B"):
        assert given_path(name) == tmp_path / name


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_object(tmp_path / "x.json")


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_not_a_regular_file(tmp_path, kind):
    path = tmp_path / "x.json"
    {"fifo": os.mkfifo, "device": lambda p: p.symlink_to("/dev/zero"), "folder": os.mkdir}[kind](path)
    with pytest.raises(ModelLoadError, match=r"x\.json"):
        read_text(path)


def test_bounds(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b" " * 100)
    assert len(read_text(path, 100)) == 100
    with pytest.raises(ModelLoadError, match="above"):
        read_text(path, 99)
    path.write_bytes(b"\xff")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        read_text(path)


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000, "1" * 5000, r'{"a": ["\ud800"]}', r'{"\uDc00": 1}'])
def test_not_an_object(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ModelLoadError, match=r"x\.json"):
        read_object(path)
