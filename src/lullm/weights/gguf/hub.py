"""A GGUF file of the hub, chosen by its quantization: a repository such as 'Qwen/Qwen3-0.6B-GGUF' holds a dozen."""

import re
from pathlib import Path

from lullm.config.gguf.file import SUFFIX, first_shards, shard_paths
from lullm.config.gguf.mmproj.finding import AUTO, choose_mmproj, find_mmproj, is_mmproj
from lullm.errors import ModelLoadError
from lullm.log import get_logger
from lullm.weights.hub.download import bars_on_a_terminal, explain

logger = get_logger(__name__)

_TIMEOUT_S = 10.0


def hub_gguf(
    repository: str,
    quantization: str,
    revision: str | None = None,
    fetches_tower: bool = True,
    asks_hub: bool = False,
) -> Path:
    """The (first) file of this quantization, from the hub's cache if it is complete there, else downloaded.

    Args:
        fetches_tower: download the mmproj file that belongs to it, too, if there is one. asks_hub: even if the model is
            in the cache without one.

    Raises:
        ModelLoadError: there is no such file, several, or the hub cannot be reached.
    """
    cached = _cached(repository, quantization, revision)
    if cached is None:
        return _download(repository, quantization, revision, fetches_tower)
    if not asks_hub or not fetches_tower or find_mmproj(cached, AUTO).path is not None:
        return cached
    try:
        return _download(repository, quantization, revision, fetches_tower)
    except ModelLoadError as error:
        logger.warning("%s is in the cache; whether a file for pictures belongs to it is not known: %s", cached, error)
        return cached


def choose(names: list[str], repository: str, quantization: str) -> str:
    """The one name of a first shard with this quantization, in either case. Raises ModelLoadError."""
    models = [path for path in map(Path, names) if path.name.endswith(SUFFIX) and not is_mmproj(path)]
    firsts = [str(path) for path in first_shards(models)]
    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(quantization)}(?![A-Za-z0-9_])", re.IGNORECASE)
    found = [name for name in firsts if word.search(Path(name).name)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(found or firsts) or "none"
    problem = f"{len(found)} GGUF files are" if found else "no GGUF file is"
    raise ModelLoadError(f"{repository}: {problem} of {quantization!r}; its GGUF files: {listed}")


def _shards(name: str) -> list[str]:
    return [str(path) for path in shard_paths(Path(name))]


def _cached(repository: str, quantization: str, revision: str | None) -> Path | None:
    from huggingface_hub import snapshot_download  # heavy, and of no use to a local file

    try:
        folder = Path(
            snapshot_download(repository, revision=revision, allow_patterns=[f"*{SUFFIX}"], local_files_only=True)
        )
        names = [str(path.relative_to(folder)) for path in folder.rglob(f"*{SUFFIX}")]
        name = choose(names, repository, quantization)
    except (OSError, ValueError, ModelLoadError):
        return None
    return folder / name if all((folder / each).is_file() for each in _shards(name)) else None


def _tower(names: list[str], model: str) -> list[str]:
    """The mmproj file of a model, if it has one; that of several is the user's to choose."""
    try:
        chosen = choose_mmproj(names, model)
    except ModelLoadError as error:
        logger.warning("%s: %s", model, error)
        return []
    return [] if chosen is None else [chosen]


def _download(repository: str, quantization: str, revision: str | None, fetches_tower: bool) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    try:
        info = HfApi().model_info(repository, revision=revision, timeout=_TIMEOUT_S)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        name = choose(names, repository, quantization)
        towers = _tower(names, name) if fetches_tower else []
        logger.info("downloading %s of %s from the hub", " and ".join([name, *towers]), repository)
        with bars_on_a_terminal():
            files = [*_shards(name), *towers]
            folder = snapshot_download(repository, revision=revision, allow_patterns=files, etag_timeout=_TIMEOUT_S)
        return Path(folder) / name
    except ModelLoadError:
        raise
    except Exception as error:  # by its version, the hub's client raises its own errors, httpx's or OSError
        raise ModelLoadError(explain(error, repository, revision)) from error
