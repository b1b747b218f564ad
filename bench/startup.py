"""From the birth of a process to a ready engine and its first token, in parts. The model is in the page cache.

python bench/startup.py [--model DIR] [--runs 5] [--json FILE] [--pause 15]
python bench/startup.py --serve [--model DIR] ...      # `lullm serve`, to the first token over HTTP

Each run is a fresh process. Parts that are called several times are added up; what no part covers stands as "the rest".
`--pause`: seconds before each run. A virtual machine gives freed memory back to its host after some; then the host must
find it again, and a run without a pause measures a start right after another engine's end.
"""

import argparse
import compileall
import contextlib
import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent / "src"
# label: (module, what it calls; of several names it calls one)
PARTS = {
    "read the configuration": (("lullm.engine.start.model", "read_model_config"),),
    "tokenizer": (("lullm.engine.start.model", "Tokenizer.from_folder"),),
    "build the model": (
        ("lullm.worker.loaded_model", "build_model"),
        ("lullm.worker.loaded_model", "materialize"),
    ),
    "load the weights": (("lullm.worker.loaded_model", "load_weights", "fill_dummy_weights"),),
    "pack the weights": (("lullm.worker.loaded_model", "pack_weights"),),
    "map the KV cache": (("lullm.worker.worker", "Worker.initialize_cache"),),
    "measure the speed of copies": (("lullm.worker.worker", "Worker.measure_copy_speed"),),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=JSON", help="an option of the engine")
    parser.add_argument("--serve", action="store_true", help="start a server instead")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each run (default: 0)")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--born", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.born is not None:
        print(json.dumps(measure(args)))
        return
    for file in Path(args.model).glob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                while stream.read(1 << 24):
                    pass
    compileall.compile_dir(SOURCE, quiet=1)
    runs = []
    for _ in range(args.runs):
        time.sleep(args.pause)
        runs.append(serve(args) if args.serve else run())
    print(f"{args.model}: {len(runs)} runs, seconds\n\n| part | median | runs |\n|---|--:|---|")
    for label in runs[0]:
        found = [parts[label] for parts in runs]
        print(f"| {label} | {statistics.median(found):.2f} | {min(found):.2f}-{max(found):.2f} |")
    if args.json:
        args.json.write_text(json.dumps({"model": args.model, "runs": runs}, indent=1))


def environment() -> dict[str, str]:
    """For a process that imports this checkout. It finds compiled modules, as those of an installed package are."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": path}


def run() -> dict[str, float]:
    """The parts of one fresh process."""
    command = [sys.executable, __file__, *sys.argv[1:], "--born", str(time.monotonic())]
    answer = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(answer)


def serve(args: argparse.Namespace) -> dict[str, float]:
    """A server's ready line, and its first token over HTTP."""
    command = [sys.executable, "-m", "lullm.cli.main", "serve", "--model", args.model, "--port", "0"]
    for option in args.option:
        name, _, value = option.partition("=")
        command += ["--" + name.replace("_", "-"), str(json.loads(value))]
    born = time.monotonic()
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        ready = time.monotonic()
        body = json.dumps({"prompt": [1] * 32, "max_tokens": 1, "temperature": 0}).encode()
        request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            answer.read()
        first = time.monotonic()
        process.terminate()
    return {"start to ready": ready - born, "first token of 32": first - ready, "start to first token": first - born}


def measure(args: argparse.Namespace) -> dict[str, float]:
    """In the fresh process; `args.born` is the time of `time.monotonic()`, one clock for all processes, before it."""
    parts: dict[str, float] = {}
    last = args.born

    def lap(label: str) -> None:
        nonlocal last
        now = time.monotonic()
        parts[label] = now - last
        last = now

    lap("start Python")
    from lullm import LLM, SamplingParams

    lap("import lullm")
    spent: dict[str, list[float]] = {}
    head_start = importlib.import_module("lullm.engine.factory").head_start

    @contextlib.contextmanager
    def timed_head_start(config: Any) -> Iterator[Any]:
        """The head start, and inside of it the imports of `LLM(...)`, timed."""
        with head_start(config) as ahead:
            lap("begin the head start")
            import torch  # noqa: F401

            lap("import torch")
            import lullm.engine.llm_engine  # noqa: F401

            lap("import the engine")
            for calls in PARTS.values():
                for module, *names in calls:
                    for name in names:
                        clock(module, name, spent.setdefault(name, []).append)
            nonlocal last
            last = time.monotonic()
            yield ahead

    vars(importlib.import_module("lullm.engine.factory"))["head_start"] = timed_head_start
    options = dict(option.split("=", 1) for option in args.option)
    llm = LLM(args.model, **{name: json.loads(value) for name, value in options.items()})
    lap("build the engine")
    if not args.option and (missed := never_called(spent)):
        sys.exit(f"never called: {', '.join(missed)}; PARTS must name what a start calls")
    for label, calls in PARTS.items():
        parts[label] = sum(sum(spent[name]) for _, *names in calls for name in names)
    parts["the rest of the engine"] = parts["build the engine"] - sum(parts[label] for label in PARTS)
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    parts["start to ready"] = last - args.born
    llm.generate([[1] * 32], params, use_tqdm=False)
    lap("first token of 32")
    parts["start to first token"] = last - args.born
    return parts


def never_called(spent: dict[str, list[float]]) -> list[str]:
    """The entries of PARTS without a call. With options an engine may rightly leave some out."""
    entries = [names for calls in PARTS.values() for _, *names in calls]
    return [" or ".join(names) for names in entries if not any(spent[name] for name in names)]


def clock(module: str, path: str, report: Any) -> None:
    """Have each call of `module`'s `path` ('name' or 'Class.name') report its seconds."""
    owner: Any = importlib.import_module(module)
    *owners, name = path.split(".")
    for step in owners:
        owner = getattr(owner, step)
    called = getattr(owner, name)  # a class method comes bound

    @functools.wraps(called)
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.monotonic()
        try:
            return called(*args, **kwargs)
        finally:
            report(time.monotonic() - started)

    setattr(owner, name, timed)


if __name__ == "__main__":
    main()
