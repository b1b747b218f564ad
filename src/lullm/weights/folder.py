"""Finding the folder of a model: bundled, local, or from the hub."""

import re
from pathlib import Path

from lullm.errors import ModelLoadError
from lullm.log import get_logger
from lullm.weights.reading.files import missing_files

logger = get_logger(__name__)

DEMO_FOLDER = Path(__file__).parents[1] / "demo" / "model"

_HUB_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
_HUB_PATTERNS = ["*.json", "model*.safetensors", "*.jinja"]  # not: original/, consolidated.safetensors
_HUB_TIMEOUT_S = 10.0


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
    return _cached_snapshot(name, revision) or _download(name, revision)


def _cached_snapshot(name: str, revision: str | None) -> Path | None:
    from huggingface_hub import snapshot_download  # heavy, and of no use to a local folder

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_PATTERNS, local_files_only=True))
    except (OSError, ValueError):
        return None
    # Another program may have fetched a few files of the snapshot only.
    is_complete = (folder / "config.json").exists() and not missing_files(folder)
    return folder if is_complete else None


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    try:
        # One short request first, so that an unreachable hub is found out within seconds.
        HfApi().model_info(name, revision=revision, timeout=_HUB_TIMEOUT_S)
        logger.info("downloading %s from the hub", name)
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=_HUB_PATTERNS, etag_timeout=_HUB_TIMEOUT_S)
        )
    except Exception as error:  # by its version, the hub's client raises its own errors, httpx's or OSError
        reason = str(error).strip().split("\n")[0]
        raise ModelLoadError(
            f"there is no folder {name!r}, and it could not be fetched from the hub "
            f"({type(error).__name__}: {reason}); pass the path of a local model folder instead"
        ) from error
