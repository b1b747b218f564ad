"""Opens the model folders that are named on its input, one a line, and says in JSON how each ended."""

import json
import logging
import sys
import time
from typing import Any

from lullm import LLM, SamplingParams
from lullm.errors import LullmError
from lullm.machine.memory import resident_bytes


def opened(folder: str) -> dict[str, Any]:
    """How opening the folder, and four tokens of it, ended. `is_known`: an error of lullm's own tree, or none."""
    before, started = resident_bytes(), time.monotonic()
    is_known, message = True, "loaded"
    try:
        with LLM(folder, num_gpu_blocks_override=64, threads=1) as llm:
            llm.generate(["hello"], SamplingParams(max_tokens=4, temperature=0), use_tqdm=False)
    except BaseException as error:  # a panic of a Rust library is no Exception
        is_known, message = isinstance(error, LullmError), f"{type(error).__name__}: {error}"
    growth = resident_bytes() - before
    return {"is_known": is_known, "message": message[:3000], "s": time.monotonic() - started, "bytes": growth}


if __name__ == "__main__":
    logging.getLogger("lullm").setLevel(logging.CRITICAL)
    for line in sys.stdin:
        print(json.dumps(opened(line.rstrip("\n"))), flush=True)
