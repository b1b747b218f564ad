"""The text and JSON files of a model folder: regular files only, and up to a size.

A folder may come from anyone. A FIFO named config.json would block the start forever, and a link to /dev/zero would
fill the memory.
"""

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lullm.errors import ConfigError, ModelLoadError
from lullm.units import MIB, format_bytes

LARGEST_JSON = 16 * MIB
"""The largest known is 1.2 MB: a tokenizer_config.json with 6,000 added tokens."""

_POINTER = b"version https://git-lfs."


def given_path(name: str) -> Path:
    """The path that a user gave, with `~` expanded; it stays the same when the process changes its folder.

    Raises ModelLoadError: no file system can have this name.
    """
    try:
        path = Path(name).expanduser()
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError, RuntimeError) as error:  # too long, no permission; NUL, half a surrogate; no such home
        raise ModelLoadError(f"{name!r} is no path that can be read: {getattr(error, 'strerror', error)}") from None
    with contextlib.suppress(FileNotFoundError):  # this process's folder has been removed
        return path.absolute()
    return path


def refuse_pointer(path: Path, start: bytes) -> None:
    """Raises ModelLoadError: a file begins as the lines that `git clone` leaves where Git LFS is not installed."""
    if start.startswith(_POINTER):
        raise ModelLoadError(
            f"{path} is not the file itself but Git LFS's pointer to it; install Git LFS, and run `git lfs pull` there"
        )


def read_content(path: Path, most_bytes: int) -> bytes:
    """The bytes of a file. Blocks on the disk, never on a pipe.

    Raises:
        FileNotFoundError: there is no such file.
        ModelLoadError: not a regular file, above `most_bytes`, not readable, or a pointer of Git LFS.
    """
    try:
        # Without O_NONBLOCK the open of a FIFO waits for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ModelLoadError(f"{path} is not a regular file")
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise ModelLoadError(f"{path} is above {format_bytes(most_bytes)}, which no such file needs")
        refuse_pointer(path, content)
        return content
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}") from None


def read_text(path: Path, most_bytes: int = LARGEST_JSON) -> str:
    """The UTF-8 text of a file. Raises as `read_content`; ModelLoadError also: not UTF-8."""
    try:
        # Editors on Windows write a byte-order mark, which is none of the text.
        return read_content(path, most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{path} cannot be read as text: {error}") from None


def read_object(path: Path, most_bytes: int = LARGEST_JSON) -> dict[str, Any]:
    """The object in a JSON file. Raises as `read_text`; ModelLoadError also: not JSON, not an object, no valid text."""
    text = read_text(path, most_bytes)
    try:
        data = json.loads(text)
        if "\\ud" in text or "\\uD" in text:  # half a surrogate pair is not valid text: encoding it later would raise
            json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(data, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return data


def option_object(name: str, text: str | None) -> dict[str, Any]:
    """The object that an option holds as JSON; empty: None. Raises ConfigError, which names the option."""
    try:
        data = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} {text:.200} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{name} must be a JSON object, not {text:.200}")
    return data


def overridden(data: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with other values; parts such as `text_config` are merged key by key."""
    parts = {
        name: overridden(data[name], value)
        for name, value in overrides.items()
        if name.endswith("_config") and isinstance(value, dict) and isinstance(data.get(name), dict)
    }
    return {**data, **overrides, **parts}


def optional_object(path: Path) -> dict[str, Any]:
    """As `read_object`; empty if there is no such file."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}


PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def processor_part(folder: Path, part: str) -> dict[str, Any] | None:
    """The keys of a processor's `part`, such as its image processor. Older folders have them alone in the first file.

    None: no file has them. Raises ModelLoadError: a file is damaged.
    """
    for name in PROCESSOR_FILES:
        try:
            data = read_object(folder / name)
        except FileNotFoundError:
            continue
        inner = data.get(part)
        if isinstance(inner, dict):
            return inner
        if name == PROCESSOR_FILES[0]:
            return data
    return None
