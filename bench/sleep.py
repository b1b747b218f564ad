"""Sleep and wake-up: seconds, resident memory, the first token afterwards, beside writing and reading the bytes once.

python bench/sleep.py                                   # the demo model
python bench/sleep.py --shape qwen3-0.6b                # dummy weights of a shape
python bench/sleep.py --model DIR --cold cpu.json       # a checkpoint; cold starts of others from bench/cpu.py

Requests run while the engine sleeps (`mode='keep'`), so that blocks of the KV cache must survive. "Once": the bytes
that were backed up, written in one go to the same place; the bytes that came back, read in one go into new memory.
A ratio is the engine's time by that. "Next token": from the call of `wake_up` to the next token of a running request,
or, with none running, to the first of a new one of 32 tokens; it stands beside a cold start of the same engine.
"""

import argparse
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shape import add_model_flags, model_options

SOURCE = Path(__file__).parent.parent / "src"
CHUNK = 8 << 20
CASES = ((1, "disk"), (1, "ram"), (2, "disk"))
MIB = 1 << 20

Cycle = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_flags(parser)
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sleep-dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--cold", type=Path, help="a --json of bench/cpu.py, for cold starts of other engines")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--born", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = model_options(folder, args.shape, args.model, max_model_len=4096)
        if args.born is not None:
            cold_start(args.born, options)
            return
        cold = [fresh_process(sys.argv[1:]) for _ in range(args.repeat)]
        cycles = [one for running in (False, True) for one in sleep_and_wake(args, options, running)]
    report(args, cold, cycles)
    if args.json:
        shown = {"model": args.shape or args.model, "cold_s": cold, "cycles": cycles}
        args.json.write_text(json.dumps(shown, indent=1))


def fresh_process(arguments: list[str]) -> float:
    """Seconds from the birth of a process to its first token."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCE), environment.get("PYTHONPATH")]))
    command = [sys.executable, __file__, *arguments, "--born", str(time.monotonic())]
    return float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)


def cold_start(born: float, options: dict[str, Any]) -> None:
    from lullm import LLM, SamplingParams

    llm = LLM(**options)
    llm.generate([[1] * 32], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True), use_tqdm=False)
    print(time.monotonic() - born)


def sleep_and_wake(args: argparse.Namespace, options: dict[str, Any], running: bool) -> list[Cycle]:
    """All cases, `args.repeat` times in turn, in one engine."""
    from lullm import SamplingParams
    from lullm.config.engine import EngineConfig
    from lullm.engine.llm_engine import LLMEngine

    options = options | {"enable_sleep_mode": True, "sleep_dir": str(args.sleep_dir), "enable_prefix_caching": False}
    engine = LLMEngine(EngineConfig.from_options(options))
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    rng = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [rng.randrange(10, min(engine.model_config.vocab_size, 7900)) for _ in range(length)]

    limit = engine.config.max_model_len - params.max_tokens
    cycles = []
    for number in range(args.repeat):
        for level, target in CASES:
            for request in range(args.num_prompts * running):
                engine.add_request(f"{number}-{level}-{target}-{request}", prompt(min(args.input_len, limit)), params)
            for _ in range(8):
                engine.step()
            cycles.append(cycle(engine, args, level, target))
            if not running:
                engine.add_request("first", prompt(32), params)
            while not any(completion.token_ids for output in engine.step() for completion in output.outputs):
                pass
            cycles[-1]["next_token_s"] = time.perf_counter() - cycles[-1].pop("woken")
            for request_id in engine.unfinished_request_ids():
                engine.abort_request(request_id, wants_output=False)
    engine.shutdown()
    return cycles


def cycle(engine, args: argparse.Namespace, level: int, target: str) -> Cycle:
    """One sleep and wake-up, and what the same bytes cost when they are written and read once."""
    from lullm.weights.folder import resolve_model

    before = resident_bytes()
    forecast = engine.explain_sleep(level=level, backup=target)
    started = time.perf_counter()
    slept = engine.sleep(level=level, backup=target)
    sleep_s = time.perf_counter() - started
    asleep = resident_bytes()
    started = time.perf_counter()
    woken = engine.wake_up()
    wake_s = time.perf_counter() - started
    folder = args.sleep_dir if target == "disk" else None
    write_s, read_s = write_and_read_once(slept.backed_up_bytes, folder)
    checkpoint = resolve_model(engine.config.model) / "model.safetensors"
    num_weight_bytes = woken.restored_bytes - slept.backed_up_bytes
    if checkpoint.is_file():
        read_s += read_once(checkpoint, num_weight_bytes)
    else:
        read_s += write_and_read_once(num_weight_bytes, None)[1]  # one file there is not: a copy in memory
    return {
        "level": level,
        "target": target,
        "num_running": len(engine.unfinished_request_ids()),
        "sleep_s": sleep_s,
        "wake_s": wake_s,
        "write_once_s": write_s,
        "read_once_s": read_s,
        "freed_bytes": slept.freed_bytes,
        "forecast_frees_bytes": forecast.frees_bytes,
        "backed_up_bytes": slept.backed_up_bytes,
        "restored_bytes": woken.restored_bytes,
        "resident_before": before,
        "resident_asleep": asleep,
        "resident_after": resident_bytes(),
        "woken": time.perf_counter() - wake_s,  # so that the next token counts from the call of wake_up
    }


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def write_and_read_once(num_bytes: int, folder: Path | None) -> tuple[float, float]:
    """Seconds to write bytes past the page cache into `folder` and to read them back; None: copies in memory."""
    if num_bytes == 0:
        return 0.0, 0.0
    source = new_memory(num_bytes)
    for start in range(0, num_bytes, CHUNK):
        source[start : start + CHUNK] = b"\1" * len(source[start : start + CHUNK])
    if folder is None:
        started = time.perf_counter()
        new_memory(num_bytes)[:] = source
        elapsed = time.perf_counter() - started
        return elapsed, elapsed
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        direct = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR | os.O_DIRECT)
        started = time.perf_counter()
        for start in range(0, len(source), CHUNK):
            os.pwrite(direct, source[start : start + CHUNK], start)
        written = time.perf_counter()
        target = new_memory(num_bytes)
        for start in range(0, len(target), CHUNK):
            os.preadv(direct, [target[start : start + CHUNK]], start)
        read = time.perf_counter()
        os.close(direct)
    return written - started, read - written


def read_once(path: Path, num_bytes: int) -> float:
    """Seconds to read a file of about `num_bytes` from the page cache into new memory, with one thread."""
    started = time.perf_counter()
    target = new_memory(num_bytes)
    with path.open("rb", buffering=0) as file:
        done = 0
        while done < num_bytes and (size := file.readinto(target[done : done + CHUNK])):
            done += size
    return time.perf_counter() - started


def new_memory(num_bytes: int) -> memoryview:
    """Memory of no pages yet, of whole disk blocks, like that which an arena has after a release."""
    memory = mmap.mmap(-1, -(-num_bytes // 4096) * 4096)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def report(args: argparse.Namespace, cold: list[float], cycles: list[Cycle]) -> None:
    """Medians of each case."""
    print(f"{args.shape or args.model}: medians of {args.repeat}\n")
    print("| level, backup | running | saved, MB | sleep, s | GB/s | once, s | ratio | resident, MiB | wake, s | GB/s "
          "| once, s | ratio | next token, s | freed by forecast |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|")
    for level, target in CASES:
        for running in (False, True):
            found = [c for c in cycles if (c["level"], c["target"], bool(c["num_running"])) == (level, target, running)]
            if not found:
                continue
            mid = {key: statistics.median(c[key] for c in found) for key in found[0] if key != "target"}
            memory = " -> ".join(f"{mid[f'resident_{when}'] / MIB:.0f}" for when in ("before", "asleep", "after"))
            freed = mid["freed_bytes"]
            cells = (
                f"{level}, {target}", f"{mid['num_running']:.0f}", f"{mid['backed_up_bytes'] / 1e6:.0f}",
                f"{mid['sleep_s']:.3f}", f"{freed / mid['sleep_s'] / 1e9:.1f}", f"{mid['write_once_s']:.3f}",
                ratio(mid["sleep_s"], mid["write_once_s"]), memory, f"{mid['wake_s']:.3f}",
                f"{mid['restored_bytes'] / mid['wake_s'] / 1e9:.1f}", f"{mid['read_once_s']:.3f}",
                ratio(mid["wake_s"], mid["read_once_s"]), f"{mid['next_token_s']:.3f}",
                f"{freed / max(mid['forecast_frees_bytes'], 1):.3f}",
            )  # fmt: skip
            print("|", " | ".join(cells), "|")
    print(f"\ncold start to first token: {statistics.median(cold):.2f} s ({min(cold):.2f}-{max(cold):.2f})")
    if args.cold:
        runs = json.loads(args.cold.read_text())["runs"]
        for engine in dict.fromkeys(r["engine"] for r in runs):
            found = [r["first_token_s"] for r in runs if r["engine"] == engine]
            print(f"  {engine}: {statistics.median(found):.2f} s ({min(found):.2f}-{max(found):.2f})")


def ratio(seconds: float, once: float) -> str:
    return f"{seconds / once:.2f}" if once else "-"


if __name__ == "__main__":
    main()
