"""Finding the folder of a model: bundled, local, or from the hub."""

import re
from pathlib import Path

from lullm.errors import ModelLoadError
from lullm.weights.hub.download import cached_snapshot, download

DEMO_FOLDER = Path(__file__).parents[1] / "demo" / "model"

_HUB_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")


def resolve_model(name: str, revision: str | None = None) -> Path:
    """The folder of `name`: 'demo' (bundled), a local folder, or a hub id ('Qwen/Qwen3-0.6B').

    A hub id is taken from the local hub cache if it is complete there; otherwise it is downloaded, which blocks for
    as long as that takes. A name that can only be a path ('./x', '/x', 'a/b/c') is never looked up in the hub.

    Raises:
        ModelLoadError: there is no such model, the hub cannot be reached, or a revision is given for a folder.
    """
    folder = Path(name).expanduser()
    if revision is not None and (name == "demo" or folder.is_dir()):
        raise ModelLoadError(f"revision={revision!r} belongs to a hub id; {name} is a folder")
    if name == "demo":
        if not (DEMO_FOLDER / "config.json").exists():
            raise ModelLoadError(f"this installation has no bundled demo model ({DEMO_FOLDER}); pass a model folder")
        return DEMO_FOLDER
    if name and folder.is_dir():  # an empty name would be the current folder
        return folder
    if folder.is_file():
        raise ModelLoadError(f"{name} is a file; pass the folder that holds it")
    if not _HUB_ID.fullmatch(name):
        raise ModelLoadError(f"there is no model folder {name!r}")
    return cached_snapshot(name, revision) or download(name, revision)


def hub_id(name: str) -> str:
    """The name, if it can be a hub id. Raises ModelLoadError: it is a folder, or a path only."""
    if name == "demo" or Path(name).expanduser().exists():
        raise ModelLoadError(f"{name} is a folder, not a model of the hub")
    if not _HUB_ID.fullmatch(name):
        raise ModelLoadError(f"{name!r} is no hub id, such as Qwen/Qwen3-0.6B")
    return name
