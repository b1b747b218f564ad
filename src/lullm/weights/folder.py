"""Finding the folder or the GGUF file of a model: bundled, local, or from the hub."""

import re
from pathlib import Path

from lullm.config.gguf.file import SUFFIX, first_shards, is_gguf, shard_paths
from lullm.errors import ModelLoadError
from lullm.log import get_logger
from lullm.weights.gguf.hub import hub_gguf
from lullm.weights.reading.files import missing_files

logger = get_logger(__name__)

DEMO_FOLDER = Path(__file__).parents[1] / "demo" / "model"

_HUB_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
_QUANTIZATION = re.compile(r"[A-Za-z0-9][\w.-]*")
_HUB_PATTERNS = ["*.json", "model*.safetensors", "*.jinja"]  # not: original/, consolidated.safetensors
_HUB_TIMEOUT_S = 10.0


def resolve_model(name: str, revision: str | None = None) -> Path:
    """The folder of `name`: 'demo' (bundled), a local folder, or a hub id ('Qwen/Qwen3-0.6B').

    Or its GGUF file, the first one of several shards: a local one, the only one of a folder without a config.json, or
    one of the hub by its quantization ('Qwen/Qwen3-0.6B-GGUF:Q4_K_M').

    A hub id is taken from the local hub cache if it is complete there; otherwise it is downloaded, which blocks for
    as long as that takes. A name that can only be a path ('./x', '/x', 'a/b/c') is never looked up in the hub.

    Raises:
        ModelLoadError: there is no such model, or more than one, the hub cannot be reached, or a revision is given for
            a folder.
    """
    folder = Path(name).expanduser()
    if revision is not None and (name == "demo" or folder.exists()):
        raise ModelLoadError(f"revision={revision!r} belongs to a hub id; {name} is a {_kind(folder)}")
    if name == "demo":
        if not (DEMO_FOLDER / "config.json").exists():
            raise ModelLoadError(f"this installation has no bundled demo model ({DEMO_FOLDER}); pass a model folder")
        return DEMO_FOLDER
    if name and folder.is_dir():  # an empty name would be the current folder
        return _gguf_in(folder) or folder
    if is_gguf(folder):
        return _gguf_file(folder)
    if folder.is_file():
        raise ModelLoadError(f"{name} is a file; pass the folder that holds it, or a {SUFFIX} file")
    repository, _, quantization = name.partition(":")
    if quantization and _HUB_ID.fullmatch(repository) and _QUANTIZATION.fullmatch(quantization):
        return hub_gguf(repository, quantization, revision)
    if not _HUB_ID.fullmatch(name):
        raise ModelLoadError(f"there is no model folder {name!r}")
    return _cached_snapshot(name, revision) or _download(name, revision)


def _kind(path: Path) -> str:
    return "file" if path.is_file() else "folder"


def _gguf_file(path: Path) -> Path:
    """The first shard of the model that the file belongs to."""
    if not path.exists():
        raise ModelLoadError(f"there is no file {path}")
    return shard_paths(path)[0]


def _gguf_in(folder: Path) -> Path | None:
    """The GGUF file of a folder that holds nothing else of a model; None: there is a config.json, or no such file."""
    if (folder / "config.json").exists():
        return None
    found = first_shards(list(folder.glob(f"*{SUFFIX}")))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:8])
        raise ModelLoadError(f"{folder} holds {len(found)} models: {names}; pass the path of one of them")
    return found[0] if found else None


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
