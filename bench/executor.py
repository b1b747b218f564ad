"""What it costs that several workers share a model: sums between processes, and steps of each executor.

python bench/executor.py sums [--workers 2] [--sizes 2048,65536] [--json FILE]

`sums`: microseconds of an all-reduce in bfloat16 by bytes, over shared memory and over gloo, in turns in the same
processes. A worker has a core of its own as far as there are cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from lullm.machine.cores import cpus_of_workers, read_cores
from lullm.ops.threads import StepThreads
from lullm.types.parallel.placement import placements
from lullm.types.parallel.rendezvous import LocalFile
from lullm.units import KIB, MIB
from lullm.worker.meeting import Meeting, open_seat

SOURCE = Path(__file__).parent.parent / "src"
SIZES = [2 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]
TRANSPORTS = ("memory", "gloo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    sums = parts.add_parser("sums")
    sums.add_argument("--workers", type=int, default=2)
    sums.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes")
    sums.add_argument("--seconds", type=float, default=0.3, help="for each size and transport, in each of 5 rounds")
    sums.add_argument("--json", type=Path, help="write all figures here")
    parts.add_parser("sums-member").add_argument("order")
    args = parser.parse_args()
    if args.part == "sums":
        measure_sums(args)
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
    calls = torch.tensor([max(3, int(seconds * 3 / (time.perf_counter() - started)))])
    group.broadcast_(calls, 0)
    started = time.perf_counter()
    for _ in range(int(calls)):
        group.all_reduce_(x)
    return 1e6 * (time.perf_counter() - started) / int(calls)


if __name__ == "__main__":
    main()
