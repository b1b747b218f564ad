"""The header of one GGUF file: metadata, and the place of each tensor.

A file may come from anywhere. Every count, length and offset is compared with the size of the file before use, so a
header cannot ask for more memory than the file has. Strings of an array are decoded on demand.
"""

import math
import mmap
import os
import stat
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lullm.config.gguf.format import BlockFormat, format_of
from lullm.config.json_file import refuse_pointer
from lullm.errors import ModelLoadError
from lullm.units import MIB

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MOST_KEYS = 1 << 16
_MOST_TENSORS = 1 << 20
_MOST_ITEMS = 1 << 23
"""Largest length of an array. The largest known vocabulary has 262,144 tokens, and 514,906 merges."""
_MOST_DIMENSIONS = 4
_LARGEST_STRING = 16 * MIB
_LARGEST_ALIGNMENT = 1 << 20
_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 512 * MIB
ALIGNMENT = 32
"""Alignment of the tensors, unless the file has another."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor in its file. `shape` has the order of numpy and torch: the last dimension is a row's."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    path: Path
    offset: int

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.format.row_bytes(self.num_values)


@dataclass(frozen=True, slots=True)
class Header:
    """`metadata`: numbers, booleans, strings, and arrays of these, by key."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorPlace]


class StringArray(Sequence[str]):
    """Strings of a header, each decoded on demand.

    Args:
        buffer: the stored strings, each after its length. ends: the end of each.
    """

    def __init__(self, buffer: bytes, ends: "array[int]", key: str):
        self._buffer, self._ends, self._key = buffer, ends, key

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        numbers = range(len(self._ends))[index]
        return self._text(numbers) if isinstance(numbers, int) else [self._text(number) for number in numbers]

    def __iter__(self) -> Iterator[str]:
        return map(self._text, range(len(self._ends)))

    def _text(self, number: int) -> str:
        start = self._ends[number - 1] if number else 0
        return _decoded(self._buffer[start + _LENGTH.size : self._ends[number]], self._key)


def read_header(path: Path) -> Header:
    """Read the header of one file. Blocks on the disk; tenths of a second for a large vocabulary.

    Raises:
        ModelLoadError: the file is no GGUF, damaged or cut off, or a part is not supported. The message names the key
            or tensor.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # the open of a FIFO would wait
        with open(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelLoadError(f"{path} is not a regular file; fetch it again")
            if not status.st_size:
                raise ModelLoadError(f"{path} is empty; fetch it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Reader(path, content).header()
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from None


class _Reader:
    """Reads one header from its start."""

    def __init__(self, path: Path, content: mmap.mmap):
        self._path, self._content, self._size = path, content, len(content)
        self._at = 0
        self._what = "its start"  # what is being read, for errors

    def header(self) -> Header:
        refuse_pointer(self._path, self._content[:64])
        if self._take(4) != MAGIC:
            raise self._fault("it is no GGUF file: the first four bytes are not 'GGUF'")
        version = self._number("<I")
        if version not in _VERSIONS:
            hint = "is of the other byte order" if version and not version & 0xFFFF else f"has version {version}"
            raise self._fault(f"it {hint}; supported are the versions {_VERSIONS}, little-endian")
        num_tensors, num_keys = self._number("<Q"), self._number("<Q")
        self._check_count("tensors", num_tensors, _MOST_TENSORS, 24)
        self._check_count("keys", num_keys, _MOST_KEYS, 13)
        metadata: dict[str, Any] = {}
        for number in range(num_keys):
            self._what = f"key {number} of {num_keys}"
            key = self._string()
            self._what = f"the key {key!r}"
            if key in metadata:
                raise self._fault(f"{key!r} stands twice")
            metadata[key] = self._value(key, self._number("<I"))
        infos = [self._tensor(number, num_tensors) for number in range(num_tensors)]
        return Header(self._path, metadata, self._places(metadata, infos))

    def _value(self, key: str, kind: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise self._fault(f"{key!r} has the unknown type {kind}")
        item, count = self._number("<I"), self._number("<Q")
        if item == _STRING:
            self._check_count(f"items of {key!r}", count, _MOST_ITEMS, 8)
            return self._strings(key, count)
        if item not in _SCALARS:
            raise self._fault(f"{key!r} is an array of the unknown type {item}")
        items = array(_SCALARS[item][1:].replace("?", "B"))
        self._check_count(f"items of {key!r}", count, _MOST_ITEMS, items.itemsize)
        items.frombytes(self._take(count * items.itemsize))
        return items

    def _strings(self, key: str, count: int) -> StringArray:
        """One pass over the lengths. The characters stay as stored."""
        start, at, ends = self._at, self._at, array("Q")
        unpack, content, last = _LENGTH.unpack_from, self._content, self._size - _LENGTH.size
        for _ in range(count):
            if at > last:
                raise self._fault("it ends too early")
            at += _LENGTH.size + unpack(content, at)[0]
            ends.append(min(at, self._size) - start)
        return StringArray(self._take(at - start), ends, key)

    def _tensor(self, number: int, count: int) -> tuple[str, tuple[int, ...], BlockFormat, int]:
        self._what = f"tensor {number} of {count}"
        name = self._string()
        self._what = f"tensor {name}"
        num_dimensions = self._number("<I")
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
            raise self._fault(f"it has {num_dimensions} dimensions")
        shape = tuple(reversed([self._number("<Q") for _ in range(num_dimensions)]))
        block = format_of(self._number("<I"), f"{name} of {self._path}")
        offset = self._number("<Q")
        if min(shape) < 1 or max(shape) > self._size * block.num_values or shape[-1] % block.num_values:
            raise self._fault(f"shape {list(shape)} cannot be one of {block.name} in this file")
        return name, shape, block, offset

    def _places(self, metadata: dict[str, Any], infos: list[Any]) -> dict[str, TensorPlace]:
        alignment = metadata.get("general.alignment", ALIGNMENT)
        self._what = "the key 'general.alignment'"
        is_power = isinstance(alignment, int) and 8 <= alignment <= _LARGEST_ALIGNMENT and not alignment & alignment - 1
        if not is_power:
            raise self._fault(f"an alignment must be a power of two from 8, not {alignment!r}")
        start = (self._at + alignment - 1) // alignment * alignment
        places: dict[str, TensorPlace] = {}
        for name, shape, block, offset in infos:
            self._what = f"tensor {name}"
            place = TensorPlace(name, shape, block, self._path, start + offset)
            if name in places:
                raise self._fault("it stands twice")
            if offset % alignment:
                raise self._fault(f"its offset {offset} is not aligned to {alignment}")
            if place.offset + place.num_bytes > self._size:
                raise self._fault(f"it ends at {place.offset + place.num_bytes}, behind the file's end {self._size}")
            places[name] = place
        return places

    def _check_count(self, what: str, count: int, most: int, least_bytes: int) -> None:
        if count > most or count * least_bytes > self._size - self._at:
            raise self._fault(f"{count} {what} are more than the file can hold")

    def _string(self) -> str:
        length = self._number("<Q")
        if length > _LARGEST_STRING:
            raise self._fault(f"it has a string of {length} bytes, which none needs")
        return _decoded(self._take(length), self._what)

    def _number(self, code: str) -> Any:
        return struct.unpack(code, self._take(struct.calcsize(code)))[0]

    def _take(self, num_bytes: int) -> bytes:
        if num_bytes > self._size - self._at:
            raise self._fault("it ends too early")
        self._at += num_bytes
        if self._at > _LARGEST_HEADER:
            raise self._fault(f"its header is above {_LARGEST_HEADER} bytes, which none needs")
        return self._content[self._at - num_bytes : self._at]

    def _fault(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self._path} is damaged or not supported, at {self._what}: {what}; fetch it again")


def read_floats(place: TensorPlace) -> list[float]:
    """The values of a small tensor. Raises ModelLoadError: it is large, or not F32."""
    if place.format.name != "F32" or place.num_values > 1 << 16:
        raise ModelLoadError(f"{place.path}: tensor {place.name} must be at most 65,536 numbers of F32")
    values = array("f")
    with place.path.open("rb") as file:
        file.seek(place.offset)
        values.frombytes(file.read(place.num_bytes))
    return values.tolist()


def _decoded(text: bytes, what: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{what} of the GGUF file holds a string that is not UTF-8: {error}") from None
