"""Where a picture's bytes are: in a data: URL, or in a file of a folder that the operator allows.

No address on the network is fetched: a server that does can be made to ask its own network (SSRF).
"""

import base64
import binascii
import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from lullm.errors import InvalidRequestError
from lullm.units import MIB

MAX_FILE_BYTES = 64 * MIB
_DATA = re.compile(r"data:(?P<kind>[^,;]*)(?P<options>(;[^,;]*)*),", re.ASCII | re.IGNORECASE)


def picture_bytes(url: str, allowed_folder: Path | None = None) -> bytes:
    """The bytes behind a URL. Blocks on the disk for a file.

    Args:
        allowed_folder: files below it may be read; None: none.

    Raises InvalidRequestError: another URL, or no such file.
    """
    scheme = url[:16].partition(":")[0].lower()
    if scheme == "data":
        return _inline(url)
    if scheme == "file":
        return _read(url, allowed_folder)
    if scheme in ("http", "https"):
        raise InvalidRequestError(
            "pictures are not fetched from the network; send the picture itself, as data:image/png;base64,..."
        )
    raise InvalidRequestError(
        f"a picture's URL is data:image/png;base64,... (or file:// with allowed_local_media_path), not {url[:40]!r}",
    )


def from_base64(text: str) -> bytes:
    """Raises InvalidRequestError."""
    try:
        return base64.b64decode("".join(text.split()) if any(map(str.isspace, text[:200])) else text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError("a picture's base64 is not valid") from None


def _inline(url: str) -> bytes:
    match = _DATA.match(url)
    if match is None:
        raise InvalidRequestError("a picture's data: URL is data:image/png;base64,...")
    if match["kind"] and not match["kind"].lower().startswith(("image/", "application/octet-stream")):
        raise InvalidRequestError(f"a data: URL of {match['kind'][:40]} is no picture")
    body = url[match.end() :]
    if ";base64" in match["options"].lower():
        return from_base64(unquote(body) if "%" in body else body)
    return unquote_to_bytes(body)


def _read(url: str, allowed_folder: Path | None) -> bytes:
    if allowed_folder is None:
        raise InvalidRequestError(
            "file:// pictures need allowed_local_media_path, the folder that they may be read from"
        )
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise InvalidRequestError("a file:// URL of a picture has three slashes: file:///folder/picture.png")
    try:
        # Links are followed before the comparison, so none leads out of the folder.
        path = Path(os.path.realpath(unquote(parts.path)))
        if not path.is_relative_to(os.path.realpath(allowed_folder)):
            raise InvalidRequestError(f"{unquote(parts.path)[:200]} is not below allowed_local_media_path")
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidRequestError("a file:// URL of a picture is of no regular file")
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        reason = getattr(error, "strerror", None) or "no such path"
        raise InvalidRequestError(f"a file:// picture cannot be read: {reason}") from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequestError(f"a file:// picture is above {MAX_FILE_BYTES} bytes")
    return data
