"""lullm beside other engines on a CPU: the same shapes, in turn (A B C A B C), each time in a fresh process.

python bench/cpu.py --model DIR --json cpu.json                                            # lullm alone
python bench/cpu.py --model DIR --json cpu.json --vllm PYTHON --openvino PYTHON --openvino-model DIR \\
    --llamacpp PYTHON --gguf FILE --rounds 3

PYTHON is the interpreter of an environment in which that engine is installed. A round that stands in --json already is
not run again, so a long comparison can be cut into many calls (`--time-limit 140`) and goes on where it stopped. DIR
can be made by `bench/checkpoint.py`; the OpenVINO folder by `optimum-cli export openvino --weight-format fp16`, the
GGUF file by llama.cpp's converter.

LULLM_CPU_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 compare what lullm and OpenVINO do without newer instructions.

Printed: medians over the rounds, and how many times as fast lullm is. Start is measured from the process's birth, with
its files in the page cache; what an engine compiled at an earlier start and kept, it may use.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peer"))
from bar_chart import draw_bars  # noqa: E402
from protocol import MARK  # noqa: E402
from throughput import CASES  # noqa: E402

PEER = Path(__file__).parent / "peer"
SOURCE = Path(__file__).parent.parent / "src"
ONE_STREAM = ("llamacpp",)
CASE_NAMES = {
    "decode1": "decode, 1 stream (32 in, 64 out)",
    "prefill1": "prefill 1 x 1024",
    "prefill4": "prefill 4 x 1024",
    "batch8": "8 x (128 in, 64 out)",
    "batch32": "32 x (128 in, 64 out)",
    "long4": "4 x (1536 in, 64 out)",
}
assert set(CASE_NAMES) == set(CASES)
LONG_CASES = {
    "prefill16k": (1, 16384, 1),
    "long16k": (1, 16384, 65),
    "prefill32k": (1, 32768, 1),
    "long32k": (1, 32768, 65),
}
"""Minutes each, so only by name. The difference of two with one context is 64 tokens behind it."""
LONG_CASE_NAMES = {
    "prefill16k": "prefill 1 x 16384",
    "long16k": "1 x (16384 in, 65 out)",
    "prefill32k": "prefill 1 x 32768",
    "long32k": "1 x (32768 in, 65 out)",
}
DECODES_BEHIND = {16384: ("prefill16k", "long16k"), 32768: ("prefill32k", "long32k")}
"""Context -> the case that reads it, and the one that goes on."""
ALL_CASES, ALL_CASE_NAMES = CASES | LONG_CASES, CASE_NAMES | LONG_CASE_NAMES

Run = dict[str, Any]
"""One process: engine, round, case names, seconds of each, ready_s, first_token_s, version, note, time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a checkpoint's folder, for lullm and vLLM")
    parser.add_argument("--json", type=Path, required=True, help="results; those that it holds are kept")
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--openvino", metavar="PYTHON")
    parser.add_argument("--openvino-model", metavar="DIR")
    parser.add_argument("--llamacpp", metavar="PYTHON")
    parser.add_argument("--gguf", metavar="FILE")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME:OPTION=JSON",
                        help='lullm once more with an option, such as int8:quantization=\'"int8"\'')  # fmt: skip
    parser.add_argument("--engine", action="append", help="only these (default: lullm and all that are given)")
    parser.add_argument("--case", action="append", choices=ALL_CASES, help=f"only these (default: {', '.join(CASES)})")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases-per-process", type=int, default=len(CASES), metavar="N")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--time-limit", type=float, metavar="S", help="stop instead of starting what would take longer")
    parser.add_argument("--report", action="store_true", help="print what --json holds and run nothing")
    parser.add_argument("--plot", type=Path, help="draw the medians as a PNG")
    args = parser.parse_args()

    runs: list[Run] = json.loads(args.json.read_text())["runs"] if args.json.exists() else []
    if not args.report:
        deadline = time.monotonic() + (args.time_limit or float("inf"))
        for engine, number, cases in missing(args, runs):
            expected = max((r["seconds_in_all"] for r in runs if r["engine"] == engine), default=0.0)
            if time.monotonic() + expected > deadline:
                print("stopped by --time-limit; call again to go on")
                break
            runs.append(run(args, engine, number, cases))
            args.json.write_text(json.dumps({"model": args.model, "threads": args.threads, "runs": runs}, indent=1))
    report(runs)
    if args.plot and runs:
        names = list(dict.fromkeys(r["engine"] for r in runs))
        groups = {label: case_medians(runs, case) for case, label in CASE_NAMES.items()}
        draw_bars(groups, names, "TOKENS PER SECOND, LULLM = 1").write(args.plot)


def engines(args: argparse.Namespace) -> dict[str, list[str]]:
    """Name -> the start of its command."""
    threads = ["--threads", str(args.threads)]
    lullm = [sys.executable, str(PEER / "run_lullm.py"), "--model", args.model, *threads]
    found = {"lullm": lullm}
    for variant in args.variant:
        name, _, option = variant.partition(":")
        found[f"lullm {name}"] = [*lullm, "--option", option]
    peers = (("vllm", args.vllm, args.model), ("openvino", args.openvino, args.openvino_model))
    for name, python, model in (*peers, ("llamacpp", args.llamacpp, args.gguf)):
        if python:
            if not model:
                sys.exit(f"--{name} needs its model: see --help")
            found[name] = [python, str(PEER / f"run_{name}.py"), "--model", model, *threads]
    if unknown := set(args.engine or ()) - set(found):
        sys.exit(f"no such engine: {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    return {name: command for name, command in found.items() if not args.engine or name in args.engine}


def missing(args: argparse.Namespace, runs: list[Run]) -> list[tuple[str, int, list[str]]]:
    """(engine, round, cases) of the processes that are still to be run, in turn."""
    done = {(r["engine"], r["round"], case) for r in runs for case in r["cases"]}
    wanted = args.case or list(CASES)
    todo = []
    for number in range(args.rounds):
        for first in range(0, len(wanted), args.cases_per_process):
            for engine in engines(args):
                cases = [
                    case
                    for case in wanted[first : first + args.cases_per_process]
                    if (engine, number, case) not in done and (ALL_CASES[case][0] == 1 or engine not in ONE_STREAM)
                ]
                if cases:
                    todo.append((engine, number, cases))
    return todo


def run(args: argparse.Namespace, engine: str, number: int, cases: Sequence[str]) -> Run:
    """One process from its birth to its end. Exits with its last words if it fails."""
    command = engines(args)[engine]
    for case in cases:
        command = [*command, "--case", ":".join(map(str, (case, *ALL_CASES[case])))]
    longest = max(input_len + output_len for _, input_len, output_len in map(ALL_CASES.__getitem__, cases))
    command = [*command, "--max-model-len", str(max(4096, longest))]
    environment = dict(os.environ)
    if engine.startswith("lullm"):
        environment["PYTHONPATH"] = os.pathsep.join([str(SOURCE), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    else:
        environment.pop("PYTHONPATH", None)
    read_once(Path(command[command.index("--model") + 1]))
    result: Run = {"engine": engine, "round": number, "cases": {}, "time": time.strftime("%Y-%m-%d %H:%M:%S")}
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as words, tempfile.TemporaryDirectory() as folder:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=words, text=True, env=environment, cwd=folder
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith(MARK):
                    continue
                fields = json.loads(line.removeprefix(MARK))
                event, elapsed = fields.pop("event"), time.perf_counter() - started
                if event in ("ready", "first_token"):
                    result[f"{event}_s"] = elapsed
                elif event == "case":
                    result["cases"][fields["name"]] = fields["seconds"]
                else:
                    result |= fields
        if process.returncode != 0 or "version" not in result:
            words.seek(0)
            sys.exit(f"{engine} failed ({process.returncode}):\n{words.read()[-2000:]}")
    result["seconds_in_all"] = time.perf_counter() - started
    speeds = ", ".join(f"{case} {speed(case, seconds[0]):.1f}" for case, seconds in result["cases"].items())
    print(f"round {number} {engine:12} ready {result['ready_s']:.1f} s, tok/s: {speeds}", flush=True)
    return result


def read_once(path: Path) -> None:
    """Have a file, or the files of a folder, in the page cache."""
    for file in path.iterdir() if path.is_dir() else (path,):
        if file.is_file():
            with file.open("rb", buffering=0) as stream:
                while stream.read(1 << 24):
                    pass


def speed(case: str, seconds: float) -> float:
    """Tokens per second: of the prompts where one token is asked for, else of the output."""
    num, input_len, output_len = ALL_CASES[case]
    return num * (input_len if output_len == 1 else output_len) / seconds


def report(runs: list[Run]) -> None:
    """A row per case with the median of each engine; ratios are of medians: lullm's speed by the peer's."""
    names = list(dict.fromkeys(r["engine"] for r in runs))
    if not names:
        return
    versions = {r["engine"]: r["version"] for r in runs}
    peers = [name for name in names if name != "lullm"]
    head = [f"{name} {versions[name]}" for name in names] + [f"lullm / {name}" for name in peers]
    print("\n| |", " | ".join(head), "|\n|---|" + "--:|" * len(head))
    for key, label in (("ready_s", "start to ready, s"), ("first_token_s", "start to first token, s")):
        row({n: [r[key] for r in runs if r["engine"] == n] for n in names}, label, peers, is_time=True)
    for case, label in ALL_CASE_NAMES.items():
        values = speeds(runs, case)
        if any(values.values()):
            row(values, f"{label}, tok/s", peers, is_time=False)
    for context, (short, long) in DECODES_BEHIND.items():
        values = {name: decodes_behind(runs, name, short, long) for name in names}
        if any(values.values()):
            row(values, f"decode behind {context} tokens, tok/s", peers, is_time=False)


def decodes_behind(runs: list[Run], engine: str, short: str, long: str) -> list[float]:
    """Tokens per second of the rounds with both cases: what the longer one took more, for its tokens."""
    of_round: dict[int, dict[str, list[float]]] = {}
    for r in runs:
        if r["engine"] == engine:
            of_round.setdefault(r["round"], {}).update(r["cases"])
    num_tokens = ALL_CASES[long][2] - ALL_CASES[short][2]
    return [
        num_tokens / (statistics.median(cases[long]) - statistics.median(cases[short]))
        for cases in of_round.values()
        if short in cases and long in cases
    ]


def speeds(runs: list[Run], case: str) -> dict[str, list[float]]:
    """All figures of a case, by engine."""
    found: dict[str, list[float]] = {}
    for r in runs:
        found.setdefault(r["engine"], []).extend(speed(case, seconds) for seconds in r["cases"].get(case, ()))
    return found


def case_medians(runs: list[Run], case: str) -> dict[str, float]:
    """Of the engines that have figures."""
    return {name: statistics.median(found) for name, found in speeds(runs, case).items() if found}


def row(values: dict[str, list[float]], label: str, peers: list[str], is_time: bool) -> None:
    medians = {name: statistics.median(found) if found else None for name, found in values.items()}
    own = medians.get("lullm")
    cells = []
    for name, found in values.items():
        span = f" ({min(found):.3g}-{max(found):.3g})" if len(found) > 1 else ""
        cells.append(f"{medians[name]:.3g}{span}" if found else "-")
    for peer in peers:
        other = medians[peer]
        known = own is not None and other is not None
        cells.append(f"{(other / own if is_time else own / other):.2f}" if known else "-")
    print(f"| {label} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
