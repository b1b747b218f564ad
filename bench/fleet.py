"""A fleet of three models under a budget for one, two or all: swaps, waits, and throughput beside all resident.

python bench/fleet.py                       # a slice of Qwen3-0.6B's shape, dummy weights, three times
python bench/fleet.py --model demo --clients 6 --seconds 5

Loads: `alternating`, one client that asks one model after the other; `mixed`, several clients that ask models at random
(seeded). Each load runs with each budget for some seconds, in turn. A swap is a load or a wake-up. A wait lasts from a
request's arrival until its model is awake.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shape import SHAPES

NAMES = ("a", "b", "c")
LAYERS = 4
"""Of the 28: a model of 170 MiB in bfloat16."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model, instead of dummy weights")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load with each budget")
    parser.add_argument("--clients", type=int, default=6, help="of the mixed load")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer")
    parser.add_argument("--slice", type=float, default=1.0, help="seconds, as --model-slice")
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"model": args.model}
        if args.model is None:
            shape = SHAPES["qwen3-0.6b"] | {"num_hidden_layers": LAYERS, "vocab_size": 32768}
            Path(folder, "config.json").write_text(json.dumps(shape))
            options = {"model": folder, "tokenizer": "demo", "load_format": "dummy", "max_model_len": 1024}
        rows = [row for fits in (3, 2, 1) for row in asyncio.run(measured(args, options, fits))]
    whole = {row["load"]: row["tokens_per_s"] for row in rows if row["fits"] == 3}
    print(f"{'load':12} {'fits':>4} {'requests':>8} {'swaps':>5} {'wait p50':>9} {'p99':>7} {'tok/s':>7} {'of all':>6}")
    for row in rows:
        share = row["tokens_per_s"] / whole[row["load"]]
        print(
            f"{row['load']:12} {row['fits']:4} {row['requests']:8} {row['swaps']:5} {row['wait_p50']:8.3f}s "
            f"{row['wait_p99']:6.3f}s {row['tokens_per_s']:7.0f} {share:6.2f}"
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


async def measured(args: argparse.Namespace, options: dict[str, Any], fits: int) -> list[dict[str, Any]]:
    """A row for each load, in a fleet with room for `fits` models."""
    from lullm.config.engine import EngineConfig
    from lullm.engine.start.model import open_model
    from lullm.fleet.fleet import Fleet
    from lullm.fleet.need import plan_model
    from lullm.fleet.options import FleetOptions, ModelSpec

    common = {"enable_sleep_mode": True, "swap_space": 0.0, "kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 16}
    specs = [ModelSpec(name=n, config=EngineConfig(**options | common | {"served_model_name": n})) for n in NAMES]
    need = plan_model(specs[0].config, open_model(specs[0].config), 1 << 40, False).need.awake_bytes
    budget = int(need * (fits + 0.4))
    fleet = Fleet(specs, FleetOptions(memory_budget=budget, model_slice_s=args.slice))
    try:
        for name in NAMES:  # each is loaded once before the clock starts
            await fleet.members[name].wake_up()
        rng = random.Random(0)
        loads: dict[str, tuple[int, Callable[[], Iterator[str]]]] = {
            "alternating": (1, lambda: (NAMES[number % 3] for number in range(10**9))),
            "mixed": (args.clients, lambda: (rng.choice(NAMES) for _ in range(10**9))),
        }
        return [await one(args, fleet, fits, load, *facts) for load, facts in loads.items()]
    finally:
        await fleet.shutdown(drain=False)


async def one(
    args: argparse.Namespace, fleet: Any, fits: int, load: str, clients: int, order: Callable[[], Iterator[str]]
) -> dict[str, Any]:
    from lullm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
    waits: list[float] = []
    fleet.turns.observe_waits(lambda name, seconds: waits.append(seconds))
    names, done, before = order(), 0, swaps(fleet)
    started = time.monotonic()

    async def client(number: int) -> None:
        nonlocal done
        while time.monotonic() < started + args.seconds:
            done += 1
            answer = fleet.members[next(names)].generate("Once upon a time", params, f"{load}-{number}-{done}")
            async for _ in answer:
                pass

    await asyncio.gather(*(client(number) for number in range(clients)))
    seconds = time.monotonic() - started
    ordered = sorted(waits)
    return {
        "load": load,
        "fits": fits,
        "requests": done,
        "swaps": swaps(fleet) - before,
        "wait_p50": statistics.median(ordered),
        "wait_p99": ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)],
        "tokens_per_s": done * args.tokens / seconds,
    }


def swaps(fleet: Any) -> int:
    return sum(num for (_, change, _), num in fleet.policy.changes.items() if change in ("load", "wake"))


if __name__ == "__main__":
    main()
