"""Forms with files (multipart/form-data, RFC 7578): the parts of a body that is already in memory.

The standard library reads mails, whose lines may end in several ways, and files hold any bytes.
"""

import re
from dataclasses import dataclass
from email.message import Message

from lullm.server.error import ApiError

_MOST_PARTS = 64
_MOST_HEAD = 8192
_END = re.compile(rb"\r\n\r\n")


@dataclass(frozen=True, slots=True)
class FormPart:
    """`filename` None: a plain field."""

    name: str
    filename: str | None
    value: bytes


def form_parts(content_type: str, body: bytes) -> list[FormPart]:
    """The parts in order. Raises ApiError 400: the body is no such form."""
    kind, boundary = _parameters(content_type, "boundary")
    if kind != "multipart/form-data" or not boundary:
        raise _broken(f"it is {kind or 'of no type'}, not multipart/form-data with a boundary")
    marker = b"\r\n--" + boundary.encode("latin-1", "replace")
    pieces = (b"\r\n" + body).split(marker, _MOST_PARTS + 1)
    if len(pieces) < 2 or len(pieces) > _MOST_PARTS + 1 or not pieces[-1].startswith(b"--"):
        raise _broken(f"its parts do not end, or are more than {_MOST_PARTS - 1}")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> FormPart:
    end = _END.search(piece, 0, _MOST_HEAD)
    if end is None or not piece.startswith(b"\r\n"):
        raise _broken("a part has no head")
    for line in piece[: end.start()].decode("utf-8", "replace").split("\r\n"):
        title, _, value = line.partition(":")
        if title.strip().lower() == "content-disposition":
            kind, name = _parameters(value, "name")
            if kind != "form-data" or name is None:
                break
            return FormPart(name, _parameters(value, "filename")[1], piece[end.end() :])
    raise _broken("a part has no name")


def _parameters(value: str, name: str) -> tuple[str, str | None]:
    """The first word of a header, and one of its parameters."""
    message = Message()
    message["content-type"] = re.sub(r"[\r\n]", " ", value.strip())
    first = value.partition(";")[0].strip().lower()
    found = message.get_param(name)
    return first, found if isinstance(found, str) or found is None else str(found[2])


def _broken(reason: str) -> ApiError:
    return ApiError(400, f"the body is no form with a file: {reason}", code="invalid_form")
