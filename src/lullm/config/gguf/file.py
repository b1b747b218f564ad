"""GGUFFile: a model's GGUF file, or all of its shards as one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lullm.config.gguf.header import MAGIC, Header, TensorPlace, read_header
from lullm.errors import ModelLoadError

SUFFIX = ".gguf"
_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
_MOST_SHARDS = 4096


def is_gguf(path: Path) -> bool:
    """Whether a path is a GGUF file: by its name, even if it does not exist, or by its first bytes.

    Ollama's files have other names. A folder may have such a name, too.
    """
    return not path.is_dir() and (path.suffix.lower() == SUFFIX or _begins_as_one(path))


def _begins_as_one(path: Path) -> bool:
    try:
        if not path.is_file():  # a pipe would wait for its writer
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def first_shards(paths: Sequence[Path]) -> list[Path]:
    """One path per model; the first shard of a model in several."""
    shards = ((path, _SHARD.match(path.name)) for path in sorted(paths))
    return [path for path, match in shards if match is None or int(match["number"]) == 1]


def shard_paths(path: Path) -> list[Path]:
    """All files of the model that `path` belongs to; `path` alone if its name is not that of a shard."""
    match = _SHARD.match(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= count <= _MOST_SHARDS:
        raise ModelLoadError(f"{path} names {count} shards; there are 1 to {_MOST_SHARDS}")
    return [path.with_name(f"{match['stem']}-{number + 1:05}-of-{count:05}{SUFFIX}") for number in range(count)]


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """The header of a model, from all its shards.

    Args:
        metadata: of the first shard; other shards repeat or lack it.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorPlace]

    @property
    def architecture(self) -> str:
        """Such as 'llama' or 'qwen3'. Raises ModelLoadError: the file names none."""
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        """The string of a key. Raises ModelLoadError: no such key, or its value is no string."""
        value = self.metadata.get(key)
        if not isinstance(value, str) or not value:
            raise ModelLoadError(f"{self.path} has no {key}, or it is no string: {value!r:.80}")
        return value


def read_gguf(path: Path) -> GGUFFile:
    """Read the headers of a model's files. Blocks on the disk.

    Raises:
        ModelLoadError: a file is missing or damaged, or two shards hold one tensor.
    """
    paths = shard_paths(path)
    if missing := [each.name for each in paths if not each.is_file()]:
        raise ModelLoadError(f"{path.parent} lacks {', '.join(missing[:4])}, which {path.name} needs")
    headers = [read_header(each) for each in paths]
    tensors: dict[str, TensorPlace] = {}
    for header in headers:
        if twice := tensors.keys() & header.tensors.keys():
            raise ModelLoadError(f"{header.path} holds tensor {min(twice)}, which another shard holds too")
        tensors |= header.tensors
    _check_all_shards(headers, tensors)
    return GGUFFile(path, headers[0].metadata, tensors)


def _check_all_shards(headers: list[Header], tensors: dict[str, TensorPlace]) -> None:
    first = headers[0]
    stated = first.metadata.get("split.count", 0)
    if stated not in (0, len(headers)):
        raise ModelLoadError(f"{first.path} is one of {stated} shards and must be named NAME-00001-of-{stated:05}.gguf")
    num_tensors = first.metadata.get("split.tensors.count", len(tensors))
    if num_tensors != len(tensors):
        raise ModelLoadError(f"{first.path}: split.tensors.count is {num_tensors}, the shards hold {len(tensors)}")
