"""Names under which another process finds classes and functions."""

from collections import OrderedDict
from json.decoder import JSONDecoder

import pytest

from lullm.errors import ConfigError
from lullm.types.wire.importable import find_importable, importable_name, is_importable_name


@pytest.mark.parametrize("text", ["json.decoder:JSONDecoder", "json.decoder.JSONDecoder"])
def test_found(text):
    assert is_importable_name(text)
    assert find_importable(text) is JSONDecoder


def test_the_name_leads_back():
    for thing in (OrderedDict, JSONDecoder, JSONDecoder.decode, find_importable):
        assert find_importable(importable_name(thing)) is thing


@pytest.mark.parametrize("text", ["", "Class", "mp", ":Class", "module:", "a b:C", "module:C()", "a:b:c"])
def test_no_name(text):
    assert not is_importable_name(text)
    with pytest.raises(ConfigError, match="is not of the form 'package.module:Name'"):
        find_importable(text)


@pytest.mark.parametrize("text", ["no_such_module:Name", "json:NoSuchName", "json.decoder:JSONDecoder.nothing"])
def test_nothing_there(text):
    with pytest.raises(ConfigError, match=f"'{text}' cannot be imported: .*must be on Python's path"):
        find_importable(text)


class Main:
    pass


Main.__module__ = "__main__"


@pytest.mark.parametrize("thing", [lambda: None, type("Local", (), {"__qualname__": "f.<locals>.Local"}), Main, 3])
def test_no_other_process_finds_it(thing):
    with pytest.raises(ConfigError, match="cannot be found by another process"):
        importable_name(thing)
