"""Values as bytes (MessagePack) and back, for verbs to workers in other processes and for their answers.

Numbers, text, bytes, lists, tuples, sets, dicts, paths, tensors and torch's types can cross; lullm's own dataclasses,
structs and enums cross by name. The receiver builds no other objects, so bytes cannot run foreign code.

A message is a head in MessagePack, then the bytes of its tensors, which are copied once into the transport.
"""

import dataclasses
import enum
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lullm.units import round_up

if TYPE_CHECKING:  # loaded only where a tensor crosses
    from torch import Tensor

Buffer = bytes | bytearray | memoryview

_ATOMS = (type(None), bool, int, float, str, bytes)
_TUPLE, _SET, _FROZENSET, _MAP, _RECORD, _ENUM, _PATH, _DTYPE, _TENSOR, _TEXT = range(10)
_ALIGNMENT = 16
"""Alignment of a tensor's bytes within a message: malloc's, and more than any type needs."""
_LENGTH_BYTES = 8

_encode = msgspec.msgpack.Encoder().encode


def encode(value: Any) -> list[Buffer]:
    """The parts of a message, in order. Tensors are referred to, not copied.

    Raises:
        TypeError: an object in it is not plain data; the error names it and its place.
    """
    tensors: list[Buffer] = []
    sizes: list[int] = []

    def place(data: memoryview) -> int:
        offset = sum(sizes)
        padding = -len(data) % _ALIGNMENT
        tensors.extend((data, bytes(padding)))
        sizes.append(len(data) + padding)
        return offset

    try:
        head = _encode(_to_wire(value, "value", place))
    except OverflowError as error:
        raise TypeError(f"value cannot go to another process: {error}") from error
    padding = -(_LENGTH_BYTES + len(head)) % _ALIGNMENT
    return [len(head).to_bytes(_LENGTH_BYTES, "little"), head + bytes(padding), *tensors]


def decode(message: memoryview) -> Any:
    """The value of a message. Tensors in it keep the message's memory; if that is read-only they are copied.

    Raises ValueError: the bytes are no such message.
    """
    num_bytes = int.from_bytes(message[:_LENGTH_BYTES], "little")
    end = _LENGTH_BYTES + num_bytes
    tensors = message[round_up(end, _ALIGNMENT) :]
    if tensors and tensors.readonly:  # torch warns about read-only memory
        tensors = memoryview(bytearray(tensors))
    try:
        return (_decoder(tensors) if tensors else _PLAIN).decode(message[_LENGTH_BYTES:end])
    except msgspec.DecodeError as error:
        raise ValueError(f"a message of another version, or a damaged one: {error}") from error


def _to_wire(value: Any, path: str, place: Callable[[memoryview], int]) -> Any:
    kind = type(value)
    if kind is str and not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        return _tagged(_TEXT, value.encode("utf-8", "surrogatepass"))  # file names that are not UTF-8 have surrogates
    if kind in _ATOMS:
        return value

    def wired(part: Any, name: object) -> Any:
        return _to_wire(part, f"{path}[{name!r}]", place)

    if kind is list:
        return [wired(part, number) for number, part in enumerate(value)]
    if kind is dict:
        pairs = [(wired(key, "a key"), wired(part, key)) for key, part in value.items()]
        if all(type(key) in (str, int) for key, _ in pairs):
            return dict(pairs)
        return _tagged(_MAP, pairs)
    if kind in (tuple, set, frozenset):
        code = _TUPLE if kind is tuple else _SET if kind is set else _FROZENSET
        return _tagged(code, [wired(part, number) for number, part in enumerate(value)])
    if isinstance(value, Path):
        return _tagged(_PATH, os.fsencode(value))
    if isinstance(value, enum.Enum):
        return _tagged(_ENUM, [_name_of(kind, path), value.name])
    names = _field_names(value)
    if names is not None:
        fields = {name: _to_wire(getattr(value, name), f"{path}.{name}", place) for name in names}
        return _tagged(_RECORD, [_name_of(kind, path), fields])
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.dtype):
        return _tagged(_DTYPE, str(value).removeprefix("torch."))
    if torch is not None and isinstance(value, torch.Tensor):
        dtype, shape, data = _bytes_of(value)
        return _tagged(_TENSOR, [dtype, shape, place(data)])
    raise TypeError(f"{path} cannot go to another process: {_shown(kind)} is no plain data")


def _decoder(tensors: memoryview) -> msgspec.msgpack.Decoder[Any]:
    """A decoder for messages with these bytes of tensors."""

    def untagged(code: int, inner: memoryview) -> Any:
        value = decoder.decode(inner)
        if code in (_TUPLE, _SET, _FROZENSET):
            return {_TUPLE: tuple, _SET: set, _FROZENSET: frozenset}[code](value)
        if code == _PATH:
            return Path(os.fsdecode(value))
        if code == _TEXT:
            return value.decode("utf-8", "surrogatepass")
        if code == _MAP:
            return dict(value)
        if code == _ENUM:
            return _known(value[0])[value[1]]
        if code == _RECORD:
            return _known(value[0])(**value[1])
        if code == _DTYPE:
            return getattr(importlib.import_module("torch"), value)
        return _tensor(value, tensors)

    decoder = msgspec.msgpack.Decoder(ext_hook=untagged)
    return decoder


_PLAIN = _decoder(memoryview(b""))
"""A decoder for messages without tensors, which almost all are: a decoder takes 0.7 us to make."""


def _tagged(code: int, value: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, _encode(value))


def _field_names(value: Any) -> Sequence[str] | None:
    """The names of a record's fields; None: the value is not a record."""
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in dataclasses.fields(value) if field.init]
    return None


def _name_of(kind: type, path: str) -> str:
    """The name of a class. Raises TypeError: the other process would not know it."""
    if kind.__module__.partition(".")[0] != "lullm" or "<" in kind.__qualname__:
        raise TypeError(f"{path} cannot go to another process: {_shown(kind)} is no class of lullm")
    return f"{kind.__module__}:{kind.__qualname__}"


def _known(name: str) -> Any:
    """A record or an enum of lullm by its name. Raises ValueError: it is neither."""
    module, _, path = name.partition(":")
    if module.partition(".")[0] != "lullm":
        raise ValueError(f"{name} is no class of lullm")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    is_record = isinstance(found, type) and (issubclass(found, (msgspec.Struct, enum.Enum)) or hasattr(found, _FIELDS))
    if not is_record:
        raise ValueError(f"{name} is no record of lullm")
    return found


_FIELDS = "__dataclass_fields__"


def _bytes_of(tensor: "Tensor") -> tuple[str, list[int], memoryview]:
    import torch

    data = tensor.detach().cpu().contiguous()
    raw = data.reshape(-1).view(torch.uint8).numpy()
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), raw.data


def _tensor(parts: list[Any], tensors: memoryview) -> "Tensor":
    import torch

    dtype_name, shape, offset = parts
    dtype = getattr(torch, dtype_name)
    if not all(shape):
        return torch.empty(shape, dtype=dtype)
    num_values = 1
    for size in shape:
        num_values *= size
    return torch.frombuffer(tensors, dtype=dtype, count=num_values, offset=offset).view(shape)


def _shown(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
