"""The process that `lullm bench startup` starts: builds an engine, generates a token, prints the times.

    python -m lullm.cli.bench.birth TIME OPTIONS

TIME: `time.monotonic()` before the process started, one clock for all processes. OPTIONS: of `LLM`, as JSON.
"""

import json
import resource
import sys
import time
from typing import Any

PROMPT_LEN = 32
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def main(born: float, options: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each part and since the start of the process; peak resident memory in bytes."""
    times = [born, time.monotonic()]
    from lullm.llm.llm import LLM
    from lullm.types.sampling_params import SamplingParams

    times.append(time.monotonic())
    llm = LLM(**options)
    times.append(time.monotonic())
    llm.generate([[1] * PROMPT_LEN], SamplingParams(max_tokens=1, ignore_eos=True), use_tqdm=False)
    times.append(time.monotonic())
    names = ("start Python", "import lullm", "load the engine", f"first token of {PROMPT_LEN}")
    seconds = {name: after - before for name, before, after in zip(names, times, times[1:], strict=False)}
    seconds |= {"start to ready": times[3] - born, "start to first token": times[4] - born}
    return {"seconds": seconds, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT}


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]), json.loads(sys.argv[2]))))
