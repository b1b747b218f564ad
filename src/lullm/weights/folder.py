"""Finds the folder or the GGUF file of a model: bundled, local, or from the hub."""

import re
from pathlib import Path

from lullm.config.gguf.file import SUFFIX, first_shards, is_gguf, shard_paths
from lullm.config.gguf.mmproj.finding import is_mmproj
from lullm.config.json_file import given_path
from lullm.config.mistral.layout import has_config
from lullm.errors import ModelLoadError
from lullm.weights.gguf.hub import hub_gguf
from lullm.weights.hub.download import cached_snapshot, download, download_config

DEMO_FOLDER = Path(__file__).parents[1] / "demo"

_HUB_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
_QUANTIZATION = re.compile(r"[A-Za-z0-9][\w.-]*")


def resolve_model(
    name: str, revision: str | None = None, needs_weights: bool = True, fetches_tower: bool = True
) -> Path:
    """The folder of `name`: 'demo' (bundled), a local folder, or a hub id ('Qwen/Qwen3-0.6B').

    Or its GGUF file (of several shards the first): a local one, the only one of a folder without a config.json, or one
    of the hub by its quantization ('Qwen/Qwen3-0.6B-GGUF:Q4_K_M').

    A hub id is taken from the local hub cache if it is complete there. Otherwise it is downloaded, which blocks;
    without `needs_weights` only config.json is. With a GGUF file comes the one beside it that reads pictures, if it has
    one (`fetches_tower`). A name that can only be a path ('./x', '/x', 'a/b/c') is never looked
    up in the hub.

    Raises:
        ModelLoadError: no such model, or more than one; the hub cannot be reached; or a revision is given for a folder.
    """
    folder = given_path(name)
    if revision is not None and (name == "demo" or folder.exists()):
        raise ModelLoadError(f"revision={revision!r} belongs to a hub id; {name} is a {_kind(folder)}")
    if name == "demo":
        if not (DEMO_FOLDER / "config.json").exists():
            raise ModelLoadError(f"this installation has no bundled demo model ({DEMO_FOLDER}); pass a model folder")
        return DEMO_FOLDER
    if name and folder.is_dir():  # an empty name would be the current folder
        try:
            return _gguf_in(folder) or folder
        except PermissionError as error:
            raise ModelLoadError(f"{folder} cannot be read: {error.strerror}") from None
    if is_gguf(folder):
        return _gguf_file(folder)
    if folder.is_file():
        raise ModelLoadError(f"{name} is a file; pass the folder that holds it, or a GGUF file")
    repository, _, quantization = name.partition(":")
    if quantization and _HUB_ID.fullmatch(repository) and _QUANTIZATION.fullmatch(quantization):
        return hub_gguf(repository, quantization, revision, fetches_tower)
    if not _HUB_ID.fullmatch(name):
        raise ModelLoadError(f"there is no model folder {name!r}")
    fetch = download if needs_weights else download_config
    return cached_snapshot(name, revision) or fetch(name, revision)


def hub_id(name: str) -> str:
    """The name, if it can be a hub id. Raises ModelLoadError: it is a folder or a file, or a path only."""
    path = given_path(name)
    if name == "demo" or path.exists():
        raise ModelLoadError(f"{name} is a {_kind(path)}, not a model of the hub")
    if not _HUB_ID.fullmatch(name):
        raise ModelLoadError(f"{name!r} is no file or folder that exists, and no hub id, such as Qwen/Qwen3-0.6B")
    return name


def _kind(path: Path) -> str:
    return "file" if path.is_file() else "folder"


def _gguf_file(path: Path) -> Path:
    """The first shard of the model that the file belongs to."""
    if not path.exists():
        raise ModelLoadError(f"there is no file {path}")
    return shard_paths(path)[0]


def _gguf_in(folder: Path) -> Path | None:
    """The GGUF file of a folder without a config.json; None: there is a config.json, or no such file."""
    if has_config(folder):
        return None
    found = first_shards([path for path in folder.glob(f"*{SUFFIX}") if not is_mmproj(path)])
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:8])
        raise ModelLoadError(f"{folder} holds {len(found)} models: {names}; pass the path of one of them")
    return found[0] if found else None
