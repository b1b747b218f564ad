"""Errors of the command line name flags: `--max-model-len`, not `max_model_len`."""

import re
from collections.abc import Iterable


def spelled_as_flags(message: str, flags: Iterable[str]) -> str:
    """The message with the names of options as flags."""
    names = {flag.removeprefix("--").replace("-", "_") for flag in flags if flag.startswith("--")}
    long = "|".join(sorted((name for name in names if "_" in name), key=len, reverse=True))
    words = "|".join(sorted(name for name in names if "_" not in name))
    # A single word is a name only at the start of a message: 'model', 'seed' and 'stop' are plain words, too. A name in
    # double quotes, behind that of a file or of an option with an object is a key of it.
    no_key = r'(?<![\w./"-])(?<!\.json: )(?<!_config: )'
    pattern = rf"{no_key}(?P<name>{long})(?P<value>=True|=False)?(?![\w/])|^(?P<word>{words})(?= must)"
    return re.sub(pattern, _flag, message)


def _flag(found: re.Match[str]) -> str:
    name = (found["name"] or found["word"]).replace("_", "-")
    return f"--no-{name}" if found["value"] == "=False" else f"--{name}"
