"""The header of a GGUF file: what is in it, and that a damaged one is an error that says where."""

import os
import random
import struct
import tracemalloc

import gguf
import numpy as np
import pytest

from lullm.config.gguf.file import read_gguf
from lullm.config.gguf.header import read_header
from lullm.errors import ModelLoadError


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int16("a.i16", -3)
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_uint64("a.u64", 1 << 40)
    writer.add_string("a.string", "naïve")
    writer.add_array("a.strings", ["x", "", "中"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.zeros((3, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_values(path):
    header = read_header(path)
    found = {key: value for key, value in header.metadata.items() if key.startswith("a.")}
    assert list(found.pop("a.strings")) == ["x", "", "中"] and list(found.pop("a.numbers")) == [1, -2, 3]
    assert found == {
        "a.u8": 200, "a.i16": -3, "a.f32": 0.5, "a.f64": 0.1, "a.bool": True, "a.u64": 1 << 40, "a.string": "naïve",
    }  # fmt: skip
    strings = header.metadata["a.strings"]
    assert strings[-1] == "中" and strings[:2] == ["x", ""] and len(strings) == 3
    assert [(place.shape, place.format.name) for place in header.tensors.values()] == [
        ((2, 3), "F32"),
        ((3, 32), "Q8_0"),
    ]
    theirs = {tensor.name: tensor.data_offset for tensor in gguf.GGUFReader(path).tensors}
    assert {name: place.offset for name, place in header.tensors.items()} == theirs


def changed(path, at, replacement):
    content = bytearray(path.read_bytes())
    content[at : at + len(replacement)] = replacement
    path.write_bytes(content)


def after(path, text):
    """The position behind a text of the file."""
    return path.read_bytes().index(text) + len(text)


HUGE = struct.pack("<Q", (1 << 63) + 5)


@pytest.mark.parametrize(
    ("place", "replacement", "said"),
    [
        (lambda path: 0, b"GGML", "no GGUF file"),
        (lambda path: 4, struct.pack("<I", 9), "has version 9"),
        (lambda path: 4, struct.pack(">I", 3), "of the other byte order"),
        (lambda path: 8, HUGE, "tensors are more than the file can hold"),
        (lambda path: 16, HUGE, "keys are more than the file can hold"),
        (lambda path: after(path, b"a.string") , struct.pack("<I", 77), "'a.string'.*unknown type 77"),
        (lambda path: after(path, b"a.string") + 4, HUGE, "'a.string'.*a string of"),
        (lambda path: after(path, b"a.string") + 4 + 8, b"\xff\xfe", "'a.string'.*not UTF-8"),
        (lambda path: after(path, b"a.strings") + 8, HUGE, "items of 'a.strings' are more"),
        (lambda path: after(path, b"a.strings") + 8 + 8, HUGE, "'a.strings'.*ends too early"),
        (lambda path: after(path, b"a.numbers") + 8, HUGE, "items of 'a.numbers' are more"),
        (lambda path: after(path, b"a.numbers") + 4, struct.pack("<I", 9), "array of the unknown type 9"),
        (lambda path: after(path, b"second"), struct.pack("<I", 50), "tensor second.*50 dimensions"),
        (lambda path: after(path, b"second") + 4, HUGE, "tensor second.*shape"),
        (lambda path: after(path, b"second") + 4, struct.pack("<Q", 31), "tensor second.*shape"),
        (lambda path: after(path, b"second") + 12, struct.pack("<Q", 99), "tensor second.*behind the file's end"),
        (lambda path: after(path, b"second") + 20, struct.pack("<I", 15), "second.*Q8_K, which is not supported"),
        (lambda path: after(path, b"second") + 20, struct.pack("<I", 999), "tensor second.*number 999"),
        (lambda path: after(path, b"second") + 24, HUGE, "tensor second.*offset"),
        (lambda path: after(path, b"second") + 24, struct.pack("<Q", 7), "tensor second.*not aligned"),
    ],
)  # fmt: skip
def test_faults_are_named(path, place, replacement, said):
    changed(path, place(path), replacement)
    with pytest.raises(ModelLoadError, match=said):
        read_header(path)


def test_any_damage_is_an_error_or_another_header(path):
    """Never another exception, and never more memory than a few times the file."""
    whole = path.read_bytes()
    rng = random.Random(0)
    faults = 0
    tracemalloc.start()
    for number in range(1500):
        content = bytearray(whole[: rng.randrange(len(whole))] if number % 3 == 0 else whole)
        for _ in range(rng.randint(0, 3)):
            if len(content) > 8:
                at = rng.randrange(len(content) - 8)
                content[at : at + 8] = rng.choice([rng.randbytes(8), HUGE, b"\xff" * 8, bytes(8)])
        path.write_bytes(content)
        try:
            read_gguf(path)
        except ModelLoadError:
            faults += 1
    assert faults > 500
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_what_is_no_file(tmp_path):
    for name, make in (
        ("empty", lambda path: path.touch()),
        ("pipe", os.mkfifo),
        ("folder", lambda path: path.mkdir()),
    ):
        path = tmp_path / f"{name}.gguf"
        make(path)
        with pytest.raises(ModelLoadError, match=name):
            read_header(path)
    with pytest.raises(ModelLoadError, match="lacks none.gguf"):
        read_gguf(tmp_path / "none.gguf")
