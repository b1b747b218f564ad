"""Everything that a GPU must say about lullm, in one command and under nine minutes: `make gpu-check`.

PYTHONPATH=src python bench/gpu_check.py                            # all parts
PYTHONPATH=src python bench/gpu_check.py --only kernels,engine --out /tmp/found

Works from source, builds nothing and needs no network. Each part has a time budget and a process of its own. Writes one
JSON and one markdown table (default: under docs/gpu/); exits with 1 if a part fails, with 2 if there is no GPU.
No GPU has run this yet.
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
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# part: seconds it may take; together less than nine minutes
BUDGETS = {"kernels": 90, "engine": 80, "sleep": 50, "sanitizer": 30, "bench": 280}
EXTRA = {"tiles": 260}
"""Parts that run only if they are named."""
TESTS = {"kernels": "tests/ops/triton", "engine": "tests/gpu/test_engine.py", "sleep": "tests/gpu/test_sleep.py"}
NEEDED = (
    "torch", "triton", "numpy", "safetensors", "tokenizers", "jinja2", "msgspec", "xxhash", "tqdm", "pytest",
    "transformers",
)  # fmt: skip
"""Modules that the parts import. A machine with torch and no network may well lack msgspec or xxhash."""
SANITIZED = ["tests/ops/triton/test_rope_cache.py", "tests/ops/triton/test_block_copy.py"]


@dataclass(slots=True)
class Outcome:
    """What came of a part. `state`: 'passed', 'failed' or 'skipped'; `figures` by name, of the bench part by case."""

    part: str
    state: str
    seconds: float
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Goal:
    """A line of the table: a figure, divided by its ceiling if it has one, and what it should reach."""

    what: str
    figure: tuple[str, str]
    ceiling: tuple[str, str] | None
    least: float
    unit: str


GOALS = (
    Goal("decode 1 stream, 8B, graphs", ("decode-8b", "graphs_gb_per_s"), ("ceilings", "copy_gb_per_s"), 0.70, "GB/s"),
    Goal("decode 1 stream, 0.6B, graphs", ("decode-0.6b", "graphs_gb_per_s"), ("ceilings", "copy_gb_per_s"), 0.45,
         "GB/s"),
    Goal("nano-vLLM's mix, by transformers'", ("mix", "output_tok_per_s"), ("mix-peer", "output_tok_per_s"), 3.0,
         "tok/s"),
    Goal("paged decode kernel, 32 x 4k", ("kernels", "decode_gb_per_s"), ("ceilings", "copy_gb_per_s"), 0.85, "GB/s"),
    Goal("prefill kernel, 8k", ("kernels", "prefill_tflop_per_s"), ("ceilings", "bf16_tflop_per_s"), 0.60, "TFLOP/s"),
    Goal("sleep level 1, 8B", ("sleep-8b", "level1_sleep_gb_per_s"), ("ceilings", "to_host_gb_per_s"), 0.80, "GB/s"),
    Goal("wake-up from level 1, 8B", ("sleep-8b", "level1_wake_gb_per_s"), ("ceilings", "to_device_gb_per_s"), 0.80,
         "GB/s"),
    Goal("memory released at level 1, 8B", ("sleep-8b", "level1_released"), None, 0.90, "of what was held"),
)  # fmt: skip


def main() -> None:
    args = parse(sys.argv[1:])
    lacking = missing(NEEDED)
    if lacking:
        print(
            f"gpu-check: {sys.executable} has no {', '.join(lacking)}; nothing was checked. Install them, or without a "
            "network unpack their wheels into a folder and name it in PYTHONPATH (docs/gpu.md)",
            file=sys.stderr,
        )
        raise SystemExit(2)
    found = gpu()
    if found is None:
        print("gpu-check: torch sees no GPU here; nothing was checked", file=sys.stderr)
        raise SystemExit(2)
    print(f"gpu-check on {found}: {', '.join(args.only)}", flush=True)
    outcomes = []
    args.out.mkdir(parents=True, exist_ok=True)
    for part in args.only:
        outcomes.append(run_part(part, args.out))
        print(f"{part}: {outcomes[-1].state} in {outcomes[-1].seconds:.0f} s", *outcomes[-1].notes, sep="\n  ")
        write(args.out, machine(found), outcomes)  # after every part: a time limit must not take what is known
    print(table(outcomes))
    raise SystemExit(int(any(outcome.state == "failed" for outcome in outcomes)))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ",".join((*BUDGETS, *EXTRA))
    parser.add_argument("--only", type=parts, default=list(BUDGETS), help=f"parts, of {known}")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gpu", help="folder for gpu-check.json and .md")
    args = parser.parse_args(argv)
    args.out = args.out.resolve()  # parts run in the root
    return args


def parts(text: str) -> list[str]:
    """'engine,kernels' -> the parts in the order in which they run."""
    names, known = text.split(","), (*BUDGETS, *EXTRA)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {', '.join(unknown)}; there are {', '.join(known)}")
    return [name for name in known if name in names]


def missing(modules: Sequence[str]) -> list[str]:
    """Those that cannot be imported here. Asked first: without one of them every part would fail on its own."""
    return [module for module in modules if find_spec(module) is None]


def gpu() -> str | None:
    """The name of the GPU, asked for in another process: this one must not hold any of its memory."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return result.stdout.strip() or None


def machine(name: str) -> dict[str, str]:
    code = "import torch, triton; print(torch.__version__, triton.__version__, torch.version.cuda)"
    versions = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout
    torch, triton, cuda = versions if len(versions) == 3 else ("?", "?", "?")
    return {
        "gpu": name,
        "commit": os.environ.get("LULLM_COMMIT") or commit.strip() or "unknown",
        "python": platform.python_version(),
        "torch": torch,
        "triton": triton,
        "cuda": cuda,
    }


def run_part(part: str, out: Path) -> Outcome:
    started = time.perf_counter()
    report = out / f".{part}"
    report.unlink(missing_ok=True)
    command = command_of(part, report)
    if command is None:
        return Outcome(part, "skipped", 0.0, ["compute-sanitizer is not installed"])
    code, tail = run(command, (BUDGETS | EXTRA)[part])
    text = report.read_text() if report.exists() else ""
    report.unlink(missing_ok=True)
    outcome = judge(part, code, tail, text)
    outcome.seconds = time.perf_counter() - started
    return outcome


def run(command: Sequence[str], limit_s: float) -> tuple[int, list[str]]:
    """(exit status, the end of what it printed); status -1 past the limit. Nothing of it is left running."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRITON_INTERPRET": "0",
    }
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        # In a group of its own: what it has started must not hold the device either.
        part = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code, late = part.wait(timeout=limit_s), []
        except subprocess.TimeoutExpired:
            code, late = -1, [f"not done within {limit_s:.0f} s"]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(part.pid, signal.SIGKILL)
        part.wait()
        printed.seek(0)
        return code, late + printed.read().strip().splitlines()[-15:]


def command_of(part: str, report: Path) -> list[str] | None:
    """What runs a part; None: something for it is not installed."""
    pytest = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "-o", "filterwarnings=",
              "-o", "faulthandler_timeout=40", f"--junitxml={report}"]  # fmt: skip
    if part == "bench":
        return [sys.executable, str(ROOT / "bench" / "gpu.py"), "--json", str(report)]
    if part == "tiles":
        return [sys.executable, str(ROOT / "bench" / "gpu_tiles.py"), "--json", str(report)]
    if part == "sanitizer":
        tool = shutil.which("compute-sanitizer")
        return None if tool is None else [tool, "--error-exitcode", "9", *pytest, "-x", *SANITIZED]
    if part == "kernels":  # most of its time is the compiler's, on the host
        workers = ["-n", "8"] if find_spec("xdist") else []
        return [*pytest, *workers, "-m", "not slow", "--ignore=tests/ops/triton/test_compile.py", TESTS[part]]
    return [*pytest, "-m", "not slow", TESTS[part]]


def judge(part: str, code: int, tail: list[str], report: str) -> Outcome:
    """The outcome of a part by its exit status, the end of what it printed and what it wrote."""
    if part == "bench":
        figures = json.loads(report) if report else {}
        notes = [f"{case}: {found['error']}" for case, found in figures.items() if "error" in found]
        state = "passed" if code == 0 and figures and not notes else "failed"
        return Outcome(part, state, 0.0, notes + ([] if code == 0 else tail), figures)
    if part == "tiles":
        figures = json.loads(report) if report else {}
        lines = [f"`{found['line'].strip()}` {found['gain']:.2f} times as fast" for found in figures.values()]
        return Outcome(part, "passed" if code == 0 and figures else "failed", 0.0, lines + ([] if code == 0 else tail),
                       figures)  # fmt: skip
    if part == "sanitizer" and any("Device not supported" in line for line in tail):
        return Outcome(part, "skipped", 0.0, ["compute-sanitizer does not support this device here"])
    counts, notes = count_tests(report)
    is_fine = code == 0 and counts["passed"] > 0
    return Outcome(part, "passed" if is_fine else "failed", 0.0, notes or ([] if is_fine else tail), counts)


def count_tests(report: str) -> tuple[dict[str, int], list[str]]:
    """(numbers by outcome, a line per failure) of a JUnit report."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    notes = []
    for case in ElementTree.fromstring(report).iter("testcase") if report else ():
        faults = [child for child in case if child.tag in ("failure", "error")]
        if faults:
            counts["failed"] += 1
            notes.append(f"{case.get('classname')}::{case.get('name')}: {(faults[0].get('message') or '')[:200]}")
        elif case.find("skipped") is not None:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts, notes


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: what passed, then the figures beside their goals, the largest gap first."""
    lines = ["| part | outcome | seconds | tests |", "|---|---|--:|---|"]
    for outcome in outcomes:
        tests = ", ".join(f"{n} {state}" for state, n in outcome.figures.items() if isinstance(n, int) and n)
        lines.append(f"| {outcome.part} | {outcome.state} | {outcome.seconds:.0f} | {tests} |")
    lines += [
        f"\n{outcome.part}:\n" + "\n".join(f"- {n}" for n in outcome.notes) for outcome in outcomes if outcome.notes
    ]
    figures = next((outcome.figures for outcome in outcomes if outcome.part == "bench"), {})
    if figures:
        lines += ["", "| what | found | ceiling | ratio | goal | |", "|---|--:|--:|--:|--:|---|", *goal_lines(figures)]
    return "\n".join(lines) + "\n"


def goal_lines(figures: dict[str, Any]) -> list[str]:
    known, missing = [], []
    for goal in GOALS:
        found = figures.get(goal.figure[0], {}).get(goal.figure[1])
        ceiling = 1.0 if goal.ceiling is None else figures.get(goal.ceiling[0], {}).get(goal.ceiling[1])
        if not found or not ceiling:
            missing.append(f"| {goal.what} | - | - | - | {goal.least:.2f} | not measured |")
            continue
        ratio = found / ceiling
        shown = "" if goal.ceiling is None else f"{ceiling:.0f}"
        value = f"{found:.2f}" if goal.ceiling is None else f"{found:.0f}"
        verdict = "reached" if ratio >= goal.least else "missed"
        line = f"| {goal.what} | {value} {goal.unit} | {shown} | {ratio:.2f} | {goal.least:.2f} | {verdict} |"
        known.append((ratio / goal.least, line))
    return [line for _, line in sorted(known)] + missing


def write(out: Path, machine: dict[str, str], outcomes: Sequence[Outcome]) -> None:
    document = {"machine": machine, "parts": [asdict(outcome) for outcome in outcomes]}
    (out / "gpu-check.json").write_text(json.dumps(document, indent=1) + "\n")
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    (out / "gpu-check.md").write_text(f"# gpu-check\n\n{facts}\n\n{table(outcomes)}")


if __name__ == "__main__":
    main()
