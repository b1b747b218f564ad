"""The local cache of the hub: lists and removes models."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lullm.config.gguf.file import SUFFIX
from lullm.config.mistral.layout import has_config
from lullm.errors import ModelLoadError
from lullm.weights.reading.files import missing_files

if TYPE_CHECKING:
    from huggingface_hub import HFCacheInfo


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One revision of a model. Times are seconds since 1970; `is_complete`: it can be started without the network."""

    name: str
    revision: str
    refs: tuple[str, ...]
    path: Path
    num_bytes: int
    last_used: float
    is_complete: bool


def cached_models() -> list[CachedModel]:
    """All revisions of models with a config.json or a GGUF file, by name; other programs' downloads, too."""
    cache = _scan()
    found = []
    for repo in cache.repos if cache is not None else ():
        if repo.repo_type != "model":
            continue
        for revision in repo.revisions:
            path = Path(revision.snapshot_path)
            if not has_config(path) and not _has_gguf(path):
                continue
            found.append(
                CachedModel(
                    repo.repo_id,
                    revision.commit_hash,
                    tuple(sorted(revision.refs)),
                    path,
                    revision.size_on_disk,
                    repo.last_accessed,
                    _is_complete(path),
                )
            )
    return sorted(found, key=lambda model: (model.name.lower(), model.revision))


def remove_model(name: str) -> int:
    """Delete all revisions of a model, and files that only they use. Returns the freed bytes.

    Raises:
        ModelLoadError: the cache does not hold it, or a file cannot be deleted.
    """
    cache = _scan()
    repos = [] if cache is None else [repo for repo in cache.repos if (repo.repo_type, repo.repo_id) == ("model", name)]
    if cache is None or not repos:
        raise ModelLoadError(f"the hub's cache holds no model {name!r}; `lullm list` shows what it holds")
    hashes = [revision.commit_hash for repo in repos for revision in repo.revisions]
    strategy = cache.delete_revisions(*hashes)
    strategy.execute()
    if any(Path(repo.repo_path).exists() for repo in repos):
        raise ModelLoadError(f"{repos[0].repo_path} could not be removed; look at who owns its files")
    return strategy.expected_freed_size


def _scan() -> "HFCacheInfo | None":
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir()
    except CacheNotFound:
        return None


def _has_gguf(folder: Path) -> bool:
    return next(folder.rglob(f"*{SUFFIX}"), None) is not None


def _is_complete(folder: Path) -> bool:
    try:
        return _has_gguf(folder) or not missing_files(folder)
    except (ModelLoadError, OSError):
        return False
