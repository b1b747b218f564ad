"""Pictures and videos of the command line: files, as the parts of a message that an engine and a server both read."""

import argparse
import base64
import mimetypes
from pathlib import Path
from typing import Any

from lullm.errors import ConfigError

_KINDS = {"image": ("a picture", "image/png"), "video": ("a video", "video/mp4")}
"""Flag -> what its files are, and the type of one whose name does not tell it: the reader looks at the bytes."""
PICTURES = tuple(_KINDS)
"""The names of the flags."""


def add_picture_flags(parser: argparse.ArgumentParser) -> None:
    """Add --image and --video."""
    for name, (noun, _) in _KINDS.items():
        parser.add_argument(
            f"--{name}",
            metavar="FILE",
            action="append",
            help=f"{noun} before each prompt, for a model that sees it (docs/vision.md); may be given several times",
        )


def picture_parts(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The files of all flags. Raises ConfigError: one cannot be read."""
    return [
        {"type": f"{name}_url", f"{name}_url": {"url": _url_of(name, Path(file).expanduser())}}
        for name in PICTURES
        for file in getattr(args, name) or ()
    ]


def _url_of(name: str, file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--{name}: cannot read {file}: {error.strerror}") from None
    kind = mimetypes.guess_type(file.name)[0] or _KINDS[name][1]
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
