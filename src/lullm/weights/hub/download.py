"""Fetches a model from the hub, or from its local cache. Every error says what to do."""

import contextlib
import difflib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from lullm.config.gguf.file import SUFFIX
from lullm.config.mistral.layout import CONFIG_FILE, PARAMS_FILE, has_config
from lullm.errors import ModelLoadError
from lullm.log import get_logger
from lullm.weights.hub.cache import cached_models
from lullm.weights.reading.files import missing_files

logger = get_logger(__name__)

_PATTERNS = [
    "*.json", "model*.safetensors", "[0-9]*_Dense/model.safetensors", "*.jinja", "tokenizer.model", "merges.txt",
    "*.tiktoken", "tiktoken.model",
]  # fmt: skip
"""Files to fetch; not original/."""
_OWN_WEIGHTS = "consolidated*.safetensors"
"""The files of a model that has Mistral's own layout only."""
_TIMEOUT_S = 10.0


def cached_snapshot(name: str, revision: str | None) -> Path | None:
    """The folder of a model that is complete in the local cache."""
    from huggingface_hub import snapshot_download  # heavy, and of no use to a local folder

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_PATTERNS, local_files_only=True))
    except (OSError, ValueError):
        return None
    # Another program may have fetched only a few files of the snapshot.
    is_complete = has_config(folder) and not missing_files(folder)
    return folder if is_complete else None


def download(name: str, revision: str | None) -> Path:
    """The folder of a model; files that the cache lacks are fetched. A terminal shows bytes and rate. Blocking.

    Raises:
        ModelLoadError: a download failed; the message says why, and what to do.
    """
    return _fetch(name, revision, _PATTERNS)


def download_config(name: str, revision: str | None) -> Path:
    """The folder of a model with config.json only, fetched if the cache lacks it. For a model's sizes. Blocking.

    Raises:
        ModelLoadError: as `download`; or the hub's model has no config.json.
    """
    from huggingface_hub import try_to_load_from_cache

    for file in (CONFIG_FILE, PARAMS_FILE):
        cached = try_to_load_from_cache(name, file, revision=revision)
        if isinstance(cached, str):
            return Path(cached).parent
    return _fetch(name, revision, [CONFIG_FILE, PARAMS_FILE])


def _fetch(name: str, revision: str | None, patterns: list[str]) -> Path:
    """The folder with the files of these patterns. Raises ModelLoadError."""
    from huggingface_hub import HfApi, snapshot_download

    try:
        # One short request first, to notice an unreachable hub within seconds.
        info = HfApi().model_info(name, revision=revision, timeout=_TIMEOUT_S)
        files = [sibling.rfilename for sibling in info.siblings or ()]
        _check_config(name, files)
        if PARAMS_FILE in files and CONFIG_FILE not in files and patterns is _PATTERNS:
            patterns = [*_PATTERNS, _OWN_WEIGHTS]
        logger.info("downloading %s from the hub", name if _PATTERNS[0] in patterns else f"the config of {name}")
        with bars_on_a_terminal():
            return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, etag_timeout=_TIMEOUT_S))
    except ModelLoadError:
        raise
    except Exception as error:  # by its version, the hub's client raises its own errors, httpx's or OSError
        raise ModelLoadError(explain(error, name, revision)) from error


def _check_config(name: str, files: list[str]) -> None:
    """Raises ModelLoadError: the hub's files are no model folder, but GGUF files; the user must name one."""
    ggufs = sorted(Path(file).name for file in files if file.endswith(SUFFIX))
    if ggufs and CONFIG_FILE not in files and PARAMS_FILE not in files:
        listed = ", ".join(ggufs[:8]) + (f" and {len(ggufs) - 8} more" if len(ggufs) > 8 else "")
        raise ModelLoadError(f"{name} holds GGUF files; name one by its quantization, as {name}:Q4_K_M: {listed}")


def explain(error: Exception, name: str, revision: str | None) -> str:
    """The reason of a failed download, and what to do."""
    from huggingface_hub import errors

    has_token = bool(os.environ.get("HF_TOKEN"))
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        access = "the account of HF_TOKEN has not been let in" if has_token else "set HF_TOKEN to a token of yours"
        return f"{name} is gated: accept its terms on https://huggingface.co/{name}; {access}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the hub's {name} has no revision {revision!r}; leave it out, or take a branch, a tag or a commit of it"
    if status == 401 and has_token:
        return f"the hub refuses HF_TOKEN for {name}; take a valid token, or unset it for a public model"
    if status == 401 and not isinstance(error, errors.RepositoryNotFoundError):
        return f"the hub wants an account for {name}; set HF_TOKEN to a token of yours, and check the spelling"
    if isinstance(error, errors.RepositoryNotFoundError) or status == 404:
        hint = "the account of HF_TOKEN sees none" if has_token else "a private one needs HF_TOKEN"
        return f"there is no folder {name!r} and no such model on the hub (check the spelling; {hint}){_advice(name)}"
    if status == 429:
        return f"the hub wants fewer requests than it got; wait, or set HF_TOKEN, before fetching {name}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space is left for {name}; `lullm list` shows what the cache holds, HF_HOME moves it elsewhere"
    reason = str(error).strip().split("\n")[0]
    offline = "; HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "on", "true") else ""
    return (
        f"there is no folder {name!r}, and it could not be fetched from the hub ({type(error).__name__}: "
        f"{reason}{offline}); check the network (HTTPS_PROXY, HF_ENDPOINT), or pass the path of a local model folder"
        f"{_advice(name)}"
    )


def _advice(name: str) -> str:
    """What may have been meant: a model that is here; or, of a name without an owner, one of Ollama's library."""
    here = {known.lower(): known for known in ["demo", *(model.name for model in cached_models())]}
    if alike := difflib.get_close_matches(name.lower(), here, n=1):
        return f"; did you mean {here[alike[0]]}, which is here?"
    if "/" in name:
        return ""
    return f"; of a name of Ollama's, `ollama show --modelfile {name}` says the file (FROM), which can be passed"


@contextlib.contextmanager
def bars_on_a_terminal() -> Iterator[None]:
    """Show the hub client's bars on a terminal only: it draws them into logs as well."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    hides = (sys.stderr is None or not sys.stderr.isatty()) and not are_progress_bars_disabled()
    if hides:
        disable_progress_bars()
    try:
        yield
    finally:
        if hides:
            enable_progress_bars()
