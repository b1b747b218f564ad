"""Head: the first lines of a request (RFC 9112), read strictly: two readings of one request are an attack.

What a proxy in front could read in another way is refused: two lengths, a length beside chunks, folded lines, a space
before a colon, control characters.
"""

import re
from dataclasses import dataclass

MAX_HEAD_BYTES = 1 << 16
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/1\.([01])")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_METHOD = re.compile(_TOKEN)
_END = re.compile(rb"\r?\n\r?\n")
_LINE_END = re.compile(rb"\r?\n")
_LENGTH = re.compile(rb"[0-9]{1,18}")


class MalformedError(Exception):
    """What came is no request of HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one request.

    `headers`: names in lower case. `length`: of the body in bytes; None: it comes in chunks. `stays`: the connection
    is kept for another request. `asks_first`: the client sends its body once it is told to.
    """

    method: str
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    length: int | None
    stays: bool
    asks_first: bool


def take_head(data: bytearray) -> Head | None:
    """Cut the head of a request off the beginning of `data`; None: it is not complete. Raises MalformedError."""
    if data.startswith((b"\r", b"\n")):  # some clients send a line end behind a body
        del data[: len(data) - len(data.lstrip(b"\r\n"))]
    end = _END.search(data, 0, MAX_HEAD_BYTES)
    if end is None:
        if len(data) >= MAX_HEAD_BYTES:
            raise MalformedError(f"a head is longer than {MAX_HEAD_BYTES} bytes")
        if data and not _METHOD.match(data):  # such as TLS on a port without it: more would not help
            raise MalformedError("it does not begin with a method")
        return None
    first, *lines = _LINE_END.split(bytes(data[: end.start()]))
    del data[: end.end()]
    request = _REQUEST.fullmatch(first)
    if request is None:
        raise MalformedError("its first line is not 'METHOD target HTTP/1.1'")
    method, target, minor = request.groups()
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise MalformedError("a line of its head is not 'name: value'")
        headers.append((field[1].lower(), field[2]))
    return _checked(method.decode(), target, f"1.{minor.decode()}", headers)


def _checked(method: str, target: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> Head:
    hosts = num_bytes = 0
    lengths: set[bytes] = set()
    is_chunked = is_last = asks_first = False
    for name, value in headers:
        num_bytes += len(value)
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            lengths.add(value)
        elif name == b"transfer-encoding":
            if is_chunked or value.lower() != b"chunked" or version == "1.0":
                raise MalformedError("of transfer encodings 'chunked' alone can be read")
            is_chunked = True
        elif name == b"connection":
            is_last |= b"close" in {option.strip() for option in value.lower().split(b",")}
        elif name == b"expect":
            asks_first |= value.lower() == b"100-continue"
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise MalformedError(f"it has {hosts} Host fields, not one")
    if len(lengths) + is_chunked > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise MalformedError("the length of its body is not one number")
    length = None if is_chunked else int(lengths.pop()) if lengths else 0
    return Head(method, target, version, headers, length, version == "1.1" and not is_last, asks_first)
