"""What a GPU must say about lullm, in one command and under ten minutes: `make gpu-check`.

PYTHONPATH=src python bench/gpu_check.py                            # the ten rows of `gpu_parts/row.py`
PYTHONPATH=src python bench/gpu_check.py --only facts,kernels --out /tmp/found
PYTHONPATH=src python bench/gpu_check.py --rest                     # the long rest: tests, the sanitizer, other engines

Works from source, builds nothing, needs no network, no git and no make. Each row has a time limit and a process of its
own; one that fails or hangs takes no other with it. Under --out (default: docs/gpu/) `gpu-check.jsonl` has every result
as soon as it is known, ROW.log all that a row has printed, `gpu-check.md` the summary, written anew after each row. A
later run replaces the rows that it runs and keeps the others. Exits with 1 if a row fails, with 2 if nothing could be
checked.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_parts.line import Lines, read_lines, write_whole
from gpu_parts.report import document, figures_of, goal_table, outcomes_of, row_table
from gpu_parts.row import FIRST, REST, ROOT, ROWS, Row, command_of, environment_of, run_here

NEEDED = {
    "torch": "torch", "triton": "triton", "numpy": "numpy", "safetensors": "safetensors", "tokenizers": "tokenizers",
    "jinja2": "jinja2", "markupsafe": "markupsafe", "msgspec": "msgspec", "xxhash": "xxhash", "tqdm": "tqdm",
}  # fmt: skip
"""Modules that the rows import, and their packages. A machine with torch and no network may lack msgspec or xxhash."""
PAST_LIMIT = 124
"""Instead of an exit status, as `timeout(1)` has it: those below zero are signals."""
NEEDED_BY_REST = {"pytest": "pytest", "transformers": "transformers"}


def main() -> None:
    args = parse(sys.argv[1:])
    if args.row:
        run_here(args.row, args.lines)
        return
    lacking = missing(NEEDED | (NEEDED_BY_REST if args.rest else {}))
    if lacking:
        print(advice(lacking), file=sys.stderr)
        raise SystemExit(2)
    found = machine()
    if not found.get("gpu"):
        print(f"gpu-check: {found.get('lacks') or 'torch sees no GPU here'}; nothing was checked", file=sys.stderr)
        raise SystemExit(2)
    print(f"gpu-check on {found['gpu']}: {', '.join(row.name for row in args.only)}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    lines = args.out / "gpu-check.jsonl"
    forget(lines, [row.name for row in args.only])
    for row in args.only:
        run_row(row, args.out, lines, found["commit"])
        write_whole(args.out / "gpu-check.md", document(found, read_lines(lines)))
    known = read_lines(lines)
    outcomes = [outcome for outcome in outcomes_of(known) if outcome.row in {row.name for row in args.only}]
    print(row_table(outcomes), goal_table(figures_of(known)), sep="\n\n")
    raise SystemExit(int(any(outcome.state == "failed" for outcome in outcomes)))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rest", action="store_true", help="the long rest instead: " + names_of(REST))
    parser.add_argument("--only", type=rows_of, help=f"rows, of {names_of(FIRST)}, and of the rest")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gpu", help="folder for what is found")
    parser.add_argument("--row", choices=ROWS, help="in this process, with --lines: what the command does for each row")
    parser.add_argument("--lines", type=Path, help="the file of results of --row")
    args = parser.parse_args(argv)
    if (args.row is None) != (args.lines is None):
        parser.error("--row and --lines go together")
    if args.only is None:
        args.only = REST if args.rest else FIRST
    args.rest = any(row.tests for row in args.only)
    args.out = args.out.resolve()  # rows run in the root
    return args


def names_of(rows: Sequence[Row]) -> str:
    return ",".join(row.name for row in rows)


def rows_of(text: str) -> list[Row]:
    """'engine,kernels' -> the rows in the order in which they run."""
    names = text.split(",")
    unknown = sorted(set(names) - set(ROWS))
    if unknown:
        raise argparse.ArgumentTypeError(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    return [row for row in ROWS.values() if row.name in names]


def missing(modules: dict[str, str]) -> list[str]:
    """Packages of modules that cannot be imported here. Asked first: without one every row would fail on its own."""
    return [package for module, package in modules.items() if find_spec(module) is None]


def advice(packages: Sequence[str]) -> str:
    version = ".".join(platform.python_version_tuple()[:2])
    return (
        f"gpu-check: {sys.executable} has no {', '.join(packages)}; nothing was checked. Install them. Without a "
        "network, where there is one:\n"
        f"  pip download --only-binary=:all: --python-version {version} --platform manylinux_2_28_{platform.machine()} "
        f"--platform manylinux2014_{platform.machine()} --no-deps -d wheels {' '.join(packages)}\n"
        "carry the folder here, and then:\n"
        "  pip install --no-index --no-deps --target site wheels/*.whl; export PYTHONPATH=$PWD/site"
    )


def machine() -> dict[str, Any]:
    """Facts for the head of the summary; asked for in another process, for this one must not hold the device."""
    code = (
        "import json, torch, triton; from lullm.device.choice import missing_for_cuda; lacks = missing_for_cuda();"
        "print(json.dumps({'gpu': '' if lacks else torch.cuda.get_device_name(), 'torch': torch.__version__,"
        "'triton': triton.__version__, 'cuda': torch.version.cuda} | ({'lacks': lacks} if lacks else {})))"
    )
    places = filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    try:
        found = json.loads(said.stdout.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        print(said.stderr[-2000:], file=sys.stderr)
        found = {}
    return {**found, "commit": commit(), "python": platform.python_version()}


def commit() -> str:
    """LULLM_COMMIT, or what git says, or 'unknown': neither git nor a checkout need be there."""
    named = os.environ.get("LULLM_COMMIT")
    if named or shutil.which("git") is None:
        return named or "unknown"
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return said.stdout.strip() or "unknown"


def forget(lines: Path, rows: Sequence[str]) -> None:
    """Drop what an earlier run has found in these rows."""
    kept = [line for line in read_lines(lines) if line["row"] not in rows]
    write_whole(lines, "".join(json.dumps(line) + "\n" for line in kept))


def run_row(row: Row, out: Path, lines: Path, at_commit: str) -> None:
    """Run it to its end or its limit, and write how it ended."""
    written, started = Lines(lines, row.name), time.perf_counter()
    written.write("begun", commit=at_commit, limit_s=row.limit_s)
    command = command_of(row, lines)
    if command is None:
        written.write("ended", code=0, seconds=0.0, why=f"{row.tool[0]} is not installed")
        return
    log = out / f"{row.name}.log"
    code = run(command, row.limit_s, log, environment_of(row, lines))
    tail = log.read_text(errors="replace").strip().splitlines()[-3:]
    if row.tool and code != 0 and "Device not supported" in log.read_text(errors="replace"):
        written.write("ended", code=code, seconds=0.0, why=f"{row.tool[0]} does not support this device here")
        return
    last_words = f"not done within {row.limit_s} s" if code == PAST_LIMIT else " / ".join(tail)[-300:]
    written.write("ended", code=code, seconds=time.perf_counter() - started, last_words=last_words)


def run(command: Sequence[str], limit_s: float, log: Path, environment: dict[str, str]) -> int:
    """The exit status; `PAST_LIMIT`. All that it prints goes to the log; nothing of it is left running."""
    with log.open("w") as printed:
        # In a group of its own: what it has started must not hold the device either.
        part = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return part.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return PAST_LIMIT
        finally:  # at Ctrl-C, too, which a group of its own does not hear
            with contextlib.suppress(ProcessLookupError):
                os.killpg(part.pid, signal.SIGKILL)
            part.wait()


def exit_at_signals() -> None:
    """By an exception, so that the row that runs is ended, too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


if __name__ == "__main__":
    exit_at_signals()
    main()
