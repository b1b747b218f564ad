"""Pictures of the command line: files, as the parts of a message that an engine and a server both read."""

import argparse
import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lullm.errors import ConfigError


def add_image_flag(parser: argparse.ArgumentParser) -> None:
    """Add --image."""
    parser.add_argument(
        "--image",
        metavar="FILE",
        action="append",
        help="a picture before each prompt, for a model that sees (docs/vision.md); may be given several times",
    )


def picture_parts(files: Sequence[str]) -> list[dict[str, Any]]:
    """Raises ConfigError: a file cannot be read."""
    return [{"type": "image_url", "image_url": {"url": _url_of(Path(file).expanduser())}} for file in files]


def _url_of(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--image: cannot read {file}: {error.strerror}") from None
    kind = mimetypes.guess_type(file.name)[0] or "image/png"  # the reader looks at the bytes
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
