"""Keys from flags, files and the environment. `ps` shows flags only."""

import os
from collections.abc import Sequence

from lullm.errors import ConfigError

API_KEY_VARIABLE = "LULLM_API_KEY"
ADMIN_KEY_VARIABLE = "LULLM_ADMIN_KEY"
MAX_FILE_BYTES = 65536


def gather_keys(flags: Sequence[str], files: Sequence[str], variable: str) -> tuple[str, ...]:
    """All keys: of the flags, the files (one a line), and the environment variable (one, even if empty).

    `ServerOptions` refuses an empty key: a missing secret must not open the server.

    Raises:
        ConfigError: a file cannot be read or has no key; or the only key is in another server's variable.
    """
    keys = [*flags, *(key for path in files for key in read_keys(path))]
    if variable in os.environ:
        keys.append(os.environ[variable])
    for other in ("VLLM_API_KEY", "LLAMA_API_KEY"):
        if variable == API_KEY_VARIABLE and not keys and os.environ.get(other):
            raise ConfigError(f"{other} is not read, and the server would be open; set {variable}, or unset {other}")
    return tuple(dict.fromkeys(keys))


def read_keys(path: str) -> list[str]:
    """The lines of `path` that are not blank.

    Raises:
        ConfigError: the file cannot be read, has no key, or is longer than MAX_FILE_BYTES.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        text = raw.decode("ascii")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the key file {path} cannot be read: {error}") from None
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys or len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"the key file {path} must hold a key a line, in at most {MAX_FILE_BYTES} bytes")
    return keys
