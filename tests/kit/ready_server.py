"""Forks a process per script, with torch and lullm imported and nothing run; `kit.ready_process` starts it."""

import atexit
import gc
import importlib
import json
import os
import runpy
import sys
import threading
import traceback

IMPORTS = ("torch", "numpy", "safetensors.torch", "lullm.llm.llm", "lullm.engine.async_llm_engine", "lullm.cli.main")


def main() -> None:
    """A line of JSON per run on stdin; its exit status on stdout."""
    for name in IMPORTS:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            status = status_of(**json.loads(line))
            threading._shutdown()  # as Python ends, but for the modules, whose memory the forks share
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def status_of(path: str, arguments: list[str], output: str, errors: str) -> int:
    """Of `python path arguments`, run here."""
    for name, descriptor in ((os.devnull, 0), (output, 1), (errors, 2)):
        file = os.open(name, os.O_RDWR)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv[:] = [path, *arguments]
    sys.path[0] = os.path.dirname(path)
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, str):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
