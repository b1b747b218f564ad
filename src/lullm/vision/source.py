"""Where the bytes of a picture, video or sound are: in a data: URL, in a file of a folder, or on a host that the
operator allows.
"""

import base64
import binascii
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from lullm.config.resolved import ResolvedConfig
from lullm.errors import InvalidRequestError
from lullm.units import MIB
from lullm.vision.network import fetch

MAX_FILE_BYTES = 64 * MIB
_DATA = re.compile(r"data:(?P<kind>[^,;]*)(?P<options>(;[^,;]*)*),", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Medium:
    """What is sent. `kinds`: the first part of its media type. `example`: a whole one."""

    noun: str
    kinds: tuple[str, ...]
    example: str


PICTURE, SOUND = Medium("picture", ("image",), "image/png"), Medium("sound", ("audio",), "audio/wav")
VIDEO = Medium("video", ("video", "image"), "video/mp4")
"""Moving pictures (GIF) are images by their type."""


@dataclass(frozen=True, slots=True)
class MediaSource:
    """What an engine's operator allows to be read.

    Attributes:
        folder: files below it (`allowed_local_media_path`); None: none.
        hosts: web servers with these names (`allowed_media_domains`).
    """

    folder: Path | None = None
    hosts: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: ResolvedConfig) -> "MediaSource":
        """What an engine allows."""
        folder = config.allowed_local_media_path
        return cls(None if folder is None else Path(folder), config.allowed_media_domains)

    def read(self, url: str, medium: Medium) -> bytes:
        """The bytes behind a URL. Blocks on the disk for a file, on the network for a web server.

        Raises InvalidRequestError: another URL, nothing there, or not allowed.
        """
        scheme = url[:16].partition(":")[0].lower()
        if scheme == "data":
            return _inline(url, medium)
        if scheme == "file":
            return _read(url, medium, self.folder)
        if scheme in ("http", "https"):
            if self.hosts:
                return fetch(url, medium.noun, self.hosts)
            raise InvalidRequestError(
                f"{medium.noun}s are not fetched from the network unless allowed_media_domains names their hosts; or "
                f"send the {medium.noun} itself, as data:{medium.example};base64,..."
            )
        raise InvalidRequestError(
            f"a {medium.noun}'s URL is data:{medium.example};base64,... (or file:// with allowed_local_media_path, "
            f"https:// with allowed_media_domains), not {url[:40]!r}",
        )


def from_base64(text: str, medium: Medium = PICTURE) -> bytes:
    """Raises InvalidRequestError."""
    try:
        return base64.b64decode("".join(text.split()) if any(map(str.isspace, text[:200])) else text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError(f"a {medium.noun}'s base64 is not valid") from None


def _inline(url: str, medium: Medium) -> bytes:
    match = _DATA.match(url)
    if match is None:
        raise InvalidRequestError(f"a {medium.noun}'s data: URL is data:{medium.example};base64,...")
    known = (*(f"{kind}/" for kind in medium.kinds), "application/octet-stream")
    if match["kind"] and not match["kind"].lower().startswith(known):
        raise InvalidRequestError(f"a data: URL of {match['kind'][:40]} is no {medium.noun}")
    body = url[match.end() :]
    if ";base64" in match["options"].lower():
        return from_base64(unquote(body) if "%" in body else body, medium)
    return unquote_to_bytes(body)


def _read(url: str, medium: Medium, allowed_folder: Path | None) -> bytes:
    noun = medium.noun
    if allowed_folder is None:
        raise InvalidRequestError(
            f"file:// {noun}s need allowed_local_media_path, the folder that they may be read from"
        )
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        name = f"{noun}.{medium.example.partition('/')[2]}"
        raise InvalidRequestError(f"a file:// URL of a {noun} has three slashes: file:///folder/{name}")
    try:
        # Links are followed before the comparison, so none leads out of the folder.
        path = Path(os.path.realpath(unquote(parts.path)))
        if not path.is_relative_to(os.path.realpath(allowed_folder)):
            raise InvalidRequestError(f"{unquote(parts.path)[:200]} is not below allowed_local_media_path")
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidRequestError(f"a file:// URL of a {noun} is of no regular file")
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        reason = getattr(error, "strerror", None) or "no such path"
        raise InvalidRequestError(f"a file:// {noun} cannot be read: {reason}") from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequestError(f"a file:// {noun} is above {MAX_FILE_BYTES} bytes")
    return data
