"""What it costs that several workers share a model: sums between processes, and steps of each executor.

python bench/executor.py sums [--workers 2] [--sizes 2048,65536] [--json FILE]
python bench/executor.py steps [--shape qwen3-0.6b] [--streams 1,8,32] [--steps 200] [--top-p 0.9] [--json FILE]

`sums`: microseconds of an all-reduce in bfloat16 by bytes, over shared memory and over gloo, in turns in the same
processes. A worker has a core of its own as far as there are cores.

`steps`: milliseconds of a step by executor, in turns, some steps of one, then of the next: the whole engine's, greedy
unless `--top-p` says otherwise, with all cores of this process. With a pipeline, whose steps draw for a share of the
streams: until all of them have a token. And microseconds of the shortest call to all workers and back. Processes of
torchrun are measured by themselves, behind the others, and by their first one.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
from shape import SHAPES, model_options

from lullm.machine.cores import cpus_of_workers, read_cores
from lullm.ops.threads import StepThreads
from lullm.types.parallel.placement import placements
from lullm.types.parallel.rendezvous import LocalFile
from lullm.units import KIB, MIB
from lullm.worker.meeting import Meeting, open_seat

SOURCE = Path(__file__).parent.parent / "src"
SIZES = [2 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]
TRANSPORTS = ("memory", "gloo")
EXECUTORS: dict[str, dict] = {
    "uni": {},
    "mp, 1 worker": {"distributed_executor_backend": "mp"},
    "mp, tensor parallel 2": {"tensor_parallel_size": 2},
    "mp, pipeline of 2": {"pipeline_parallel_size": 2},
    "ray, tensor parallel 2": {"distributed_executor_backend": "ray", "tensor_parallel_size": 2},
    "torchrun, tensor parallel 2": {"distributed_executor_backend": "external_launcher", "tensor_parallel_size": 2},
}
NAMES = [name for name in EXECUTORS if "ray" not in name]  # an extra, which reserves all cores of the machine
MEMBER = "LULLM_BENCH_MEMBER"
"""In the environment of processes that torchrun has started: where the first one writes its figures."""
BURST = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    sums = parts.add_parser("sums")
    sums.add_argument("--workers", type=int, default=2)
    sums.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes")
    sums.add_argument("--seconds", type=float, default=0.3, help="for each size and transport, in each of 5 rounds")
    sums.add_argument("--json", type=Path, help="write all figures here")
    parts.add_parser("sums-member").add_argument("order")
    steps = parts.add_parser("steps")
    steps.add_argument("--shape", choices=SHAPES, help="dummy weights of this shape instead of the demo model")
    steps.add_argument("--executor", action="append", choices=EXECUTORS, help="several times (default: all but ray)")
    steps.add_argument("--streams", default="1,8,32")
    steps.add_argument("--steps", type=int, default=200, help="of each executor and number of streams")
    steps.add_argument("--input-len", type=int, default=128)
    steps.add_argument("--top-p", type=float, help="draw at random (temperature 0.8) with this top_p, not greedily")
    steps.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    if args.part == "sums":
        measure_sums(args)
    elif args.part == "steps":
        measure_steps(args)
    else:
        sums_of_member(json.loads(args.order))


def measure_sums(args: argparse.Namespace) -> None:
    sizes = [int(size) for size in args.sizes.split(",")]
    cpus = cpus_of_workers(read_cores(), args.workers)
    meetings = [Meeting.on_this_host(transport=transport) for transport in TRANSPORTS]
    members = []
    for rank in range(args.workers):
        order = {
            "rank": rank,
            "workers": args.workers,
            "cpus": sorted(cpus[rank]),
            "meetings": [asdict(meeting.rendezvous) for meeting in meetings],
            "sizes": sizes,
            "seconds": args.seconds,
        }
        descriptors = [descriptor for meeting in meetings for descriptor in meeting.descriptors]
        members.append(start([__file__, "sums-member", json.dumps(order)], descriptors))
    answer, *_ = [member.communicate()[0] for member in members]
    found = json.loads(answer)
    print(f"all-reduce of {args.workers} workers, bfloat16, microseconds: median of 5 rounds (range)\n")
    print("| bytes | shared memory | gloo | gloo / shared memory |\n|--:|--:|--:|--:|")
    for size in sizes:
        memory, gloo = (found[transport][str(size)] for transport in TRANSPORTS)
        ratio = statistics.median(gloo) / statistics.median(memory)
        print(f"| {size} | {in_words(memory)} | {in_words(gloo)} | {ratio:.1f} |")
    if args.json:
        args.json.write_text(json.dumps({"workers": args.workers, "sums": found}, indent=1))


def in_words(figures: list[float]) -> str:
    return f"{statistics.median(figures):.1f} ({min(figures):.1f}-{max(figures):.1f})"


def start(arguments: list[str], descriptors: list[int]) -> "subprocess.Popen[str]":
    """A process that imports this checkout and has inherited the descriptors."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, *arguments],
        pass_fds=descriptors,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def sums_of_member(order: dict) -> None:
    """One worker's part; the first prints the microseconds of all rounds."""
    os.sched_setaffinity(0, order["cpus"])
    place = placements(order["workers"], 1)[order["rank"]]
    groups = [open_seat(place, LocalFile(**meeting)).tensor for meeting in order["meetings"]]
    found: dict[str, dict[int, list[float]]] = {transport: {} for transport in TRANSPORTS}
    with StepThreads(1).scope():
        for _ in range(5):
            for size in order["sizes"]:
                for transport, group in zip(TRANSPORTS, groups, strict=True):
                    figure = microseconds_of_sum(group, size, order["seconds"])
                    found[transport].setdefault(size, []).append(figure)
    for group in groups:
        group.close()
    if order["rank"] == 0:
        print(json.dumps(found))


def microseconds_of_sum(group, size: int, seconds: float) -> float:
    """All members make equally many calls: the first says how many."""
    x = torch.zeros(size // 2, dtype=torch.bfloat16)
    group.all_reduce_(x)
    started = time.perf_counter()
    for _ in range(3):
        group.all_reduce_(x)
    wanted = max(3, int(seconds * 3 / (time.perf_counter() - started)))
    calls = int(group.all_gather(torch.tensor([[wanted]]))[0, 0])
    started = time.perf_counter()
    for _ in range(calls):
        group.all_reduce_(x)
    return 1e6 * (time.perf_counter() - started) / calls


def measure_steps(args: argparse.Namespace) -> None:
    names = args.executor or NAMES
    if MEMBER in os.environ:
        Path(os.environ[MEMBER], os.environ["RANK"]).write_text(json.dumps(measured(names, args)))
        return
    is_launched = {name: EXECUTORS[name].get("distributed_executor_backend") == "external_launcher" for name in names}
    rows = measured([name for name in names if not is_launched[name]], args)
    for name in names:
        if is_launched[name]:
            by_torchrun = measured_by_torchrun(name)
            rows = {label: found | by_torchrun[label] for label, found in rows.items()}
    print(f"{args.shape or 'demo'}: medians (tenth and ninetieth percentile), and the first of the row / each\n")
    print(f"| | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for label, found in rows.items():
        first = statistics.median(found[names[0]])
        cells = (f"{with_spread(found[name])}, {first / statistics.median(found[name]):.2f}" for name in names)
        print(f"| {label} | {' | '.join(cells)} |")
    if args.json:
        args.json.write_text(json.dumps({"shape": args.shape or "demo", "rows": rows}, indent=1))


def measured(names: list[str], args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Row -> executor -> figures, of executors that take turns."""
    from lullm import EngineConfig
    from lullm.engine.llm_engine import LLMEngine

    options = {"enable_prefix_caching": False, "max_model_len": 1024, "num_gpu_blocks_override": 1024}
    with tempfile.TemporaryDirectory() as folder:
        options |= model_options(folder, args.shape)
        engines = {name: LLMEngine(EngineConfig(**options, **EXECUTORS[name])) for name in names}
    rows = {f"prefill, {args.input_len} tokens, ms": prefill_times(engines, args.input_len)}
    for streams in map(int, args.streams.split(",")):
        rows[f"decode, {streams} streams, ms"] = decode_times(engines, streams, args)
    rows["a call and back, us"] = {name: call_times(engine) for name, engine in engines.items()}
    for engine in engines.values():
        engine.shutdown()
    return rows


def measured_by_torchrun(name: str) -> dict[str, dict[str, list[float]]]:
    """`measured` of one executor, by the first of its processes, which are given this command's other arguments."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    own = [word for word in sys.argv if word not in EXECUTORS and word != "--executor"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, *own, "--executor", name], env=os.environ | {MEMBER: folder}, check=True)
        return json.loads(Path(folder, "0").read_text())


def with_spread(times: list[float]) -> str:
    cuts = statistics.quantiles(times, n=10)
    return f"{statistics.median(times):.3f} ({cuts[0]:.3f}-{cuts[-1]:.3f})"


def prefill_times(engines: dict, input_len: int) -> dict[str, list[float]]:
    """Milliseconds from a prompt to its first token, with the last step of that request."""
    from lullm import SamplingParams

    found: dict[str, list[float]] = {name: [] for name in engines}
    rng = random.Random(1)
    for number in range(11):
        prompt = [rng.randrange(10, 2000) for _ in range(input_len)]
        for name, engine in engines.items():
            started = time.perf_counter()
            engine.add_request("x", prompt, SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
            while engine.has_unfinished_requests():
                engine.step()
            if number:  # the first one meets fresh memory
                found[name].append(1e3 * (time.perf_counter() - started))
    return found


def decode_times(engines: dict, num_streams: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds per token of all streams."""
    from lullm import SamplingParams

    rng = random.Random(0)
    kind = {"temperature": 0.0} if args.top_p is None else {"temperature": 0.8, "top_p": args.top_p, "seed": 1}
    params = SamplingParams(**kind, max_tokens=2 * args.steps + 64, ignore_eos=True)
    found: dict[str, list[float]] = {name: [] for name in engines}
    for engine in engines.values():
        for number in range(num_streams):
            engine.add_request(str(number), [rng.randrange(10, 2000) for _ in range(args.input_len)], params)
        num_begun = 0
        while num_begun < num_streams:  # prompts; those of a pipeline come in several steps
            num_begun += sum(len(output.outputs[0].token_ids) == 1 for output in engine.step())
    while len(next(iter(found.values()))) < args.steps:
        for name, engine in engines.items():
            engine.step()  # the first one after another engine meets cold caches
            for _ in range(BURST):
                started = time.perf_counter()
                num_drawn = len(engine.step())
                found[name].append(1e3 * (time.perf_counter() - started) * num_streams / num_drawn)
    for engine in engines.values():
        engine.abort_request([str(number) for number in range(num_streams)])
        while engine.has_unfinished_requests():
            engine.step()
    return found


def call_times(engine) -> list[float]:
    """Microseconds of the shortest call to all workers and back."""
    found = []
    for _ in range(300):
        started = time.perf_counter()
        engine.collective_rpc("weights_version")
        found.append(1e6 * (time.perf_counter() - started))
    return found


if __name__ == "__main__":
    main()
