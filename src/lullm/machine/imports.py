"""Which modules can be imported, tried in another process."""

import json
import subprocess
import sys
from collections.abc import Sequence

_TIMEOUT_S = 120.0  # torch from a slow disk
_CODE = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
for name in sys.argv[2:]:
    print("\\n>" + name, flush=True)
    try:
        importlib.import_module(name)
    except BaseException as error:
        print("\\n!" + f"{type(error).__name__}: {error}".replace("\\n", " "), flush=True)
"""


def failed_imports(modules: Sequence[str]) -> dict[str, str]:
    """Module -> why it cannot be imported, for those that cannot. Blocks for seconds.

    Another process imports them, so that a library which ends its process (for an instruction that the processor lacks,
    or a broken driver) ends that one. The modules behind such a library are tried in a next process.
    """
    reasons: dict[str, str] = {}
    untried = list(modules)
    while untried:
        output, end = _imported(untried)
        last = None
        for line in output.splitlines():
            if line.startswith(">") and line[1:] in untried:
                last = line[1:]
            elif line.startswith("!") and last is not None:
                reasons[last] = line[1:]
        if end is None:
            break
        culprit = last or untried[0]
        reasons[culprit] = end
        untried = untried[untried.index(culprit) + 1 :]
    return reasons


def _imported(modules: Sequence[str]) -> tuple[str, str | None]:
    """What the process printed, and how it ended; None: well."""
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _CODE, json.dumps(sys.path), *modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(errors="replace"), f"its import takes more than {_TIMEOUT_S:g} s"
    end = f"its import ends the process (exit code {ended.returncode})" if ended.returncode else None
    return ended.stdout.decode(errors="replace"), end
