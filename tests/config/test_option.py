"""Options: what a declaration says is what is checked, told and read back."""

import dataclasses
from typing import Literal

import pytest

from lullm.config.engine import EngineConfig
from lullm.config.option.option import Option, described, option, options_of
from lullm.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Oven:
    degrees: int = option(180, "how hot", "device", least=50, most=300)
    minutes: float | None = option(None, "how long; default: until it is brown", "scheduling", above=0, unit="minutes")
    fan: bool = option(False, "move the air", "device")
    light: bool | None = option(None, "see the cake; default: while it is open", "device")
    shelf: Literal["top", "bottom"] = option("top", "where", "model")
    grill: Literal[None, "low", "high"] = option(None, "heat from above; default: none", "model", advice="open it")
    share: float = option(0.5, "of the cake", "device", least=0, below=1)
    name: str = option("cake", "what", "model")


OPTIONS = {each.name: each for each in options_of(Oven)}


def test_groups_keep_their_order():
    assert list(OPTIONS) == ["shelf", "grill", "name", "degrees", "fan", "light", "share", "minutes"]


@pytest.mark.parametrize(
    ("name", "kind", "choices", "is_optional"),
    [
        ("degrees", int, (), False), ("minutes", float, (), True), ("fan", bool, (), False), ("light", bool, (), True),
        ("shelf", str, ("top", "bottom"), False), ("grill", str, ("low", "high"), True), ("name", str, (), False),
    ],
)  # fmt: skip
def test_the_annotation_says_what_it_takes(name, kind, choices, is_optional):
    read = OPTIONS[name]
    assert (read.kind, read.choices, read.is_optional) == (kind, choices, is_optional)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("degrees", (50, 300)), ("minutes", (None, 0.1, 7)), ("fan", (True, False)), ("light", (None, True)),
        ("shelf", ("top", "bottom")), ("grill", (None, "low")), ("share", (0, 0.99)), ("name", ("", "x")),
    ],
)  # fmt: skip
def test_taken(name, values):
    for value in values:
        OPTIONS[name].check(value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("degrees", 49, "must be an integer of at least 50 and at most 300, not 49"),
        ("degrees", 301, "not 301"),
        ("degrees", 50.0, "not 50.0"),
        ("degrees", True, "not True"),
        ("degrees", None, "not None"),
        ("minutes", 0, "must be a number of minutes above 0, not 0"),
        ("minutes", "1", "not '1'"),
        ("minutes", float("nan"), "not nan"),
        ("fan", None, "must be True or False, not None"),
        ("light", 1, "must be True, False or None, not 1"),
        ("shelf", "middle", "must be one of top, bottom, not 'middle'"),
        ("shelf", None, "not None"),
        ("grill", "x", "must be one of None, low, high, not 'x'; open it"),
        ("share", 1, "must be a number of at least 0 and below 1, not 1"),
        ("name", 3, "must be a string, not 3"),
        ("name", "m\udce9", r"must be UTF-8, not 'm\udce9'"),
    ],
)
def test_refused(name, value, words):
    with pytest.raises(ConfigError) as error:
        OPTIONS[name].check(value)
    assert str(error.value).startswith(f"{name} must be ") and str(error.value).endswith(words)


def test_help_tells_the_default_once():
    assert OPTIONS["degrees"].shown_help == "how hot (default: 180)"
    assert OPTIONS["fan"].shown_help == "move the air (default: off)"
    assert OPTIONS["minutes"].shown_help == "how long; default: until it is brown"
    assert described(Oven).splitlines()[:2] == ["    Args:", "        shelf: where (default: top)."]


@pytest.mark.parametrize("option", [{"quantization": "awq"}, {"load_format": "gguf"}], ids=str)
def test_names_of_others_for_what_is_read_as_it_is(option):
    """Callers of vLLM give them; without the option the checkpoint is read."""
    with pytest.raises(ConfigError, match="leave it out for GGUF files and quantized checkpoints"):
        EngineConfig(**option)


@pytest.mark.parametrize("read", options_of(EngineConfig), ids=lambda read: read.name)
def test_every_engine_option_is_declared_whole(read: Option):
    read.check(read.default)
    assert read.default is not None or read.is_optional
    assert f"        {read.name}: {read.shown_help}." in (EngineConfig.__doc__ or "")
    speaks_for_itself = read.name in ("revision", "num_gpu_blocks_override", "distributed_executor_backend")
    if read.default is None and not speaks_for_itself:
        assert "default" in read.help, "None says nothing: the help must tell what happens then"


def test_every_field_is_an_option():
    assert {read.name for read in options_of(EngineConfig)} == {f.name for f in dataclasses.fields(EngineConfig)}
