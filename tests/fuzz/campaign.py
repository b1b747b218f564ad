"""Rounds of a fuzz target for so many seconds, with the seed of each; and the command line of `make fuzz`.

    python -m fuzz.campaign --seconds 600 [--target engine] [--seed 123] [--rounds 1]

Round i of a run with `--seed S` uses the seed S + i alone, so that the seed that is printed with a failure replays it.
"""

import argparse
import logging
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from .target import Target

WARM_UP = 0.3
"""Of a run's rounds: memory may grow in them, and at most by `GROWTH_BYTES` afterwards."""
GROWTH_BYTES = 100 << 20
REPORT_S = 10.0


class Campaign:
    """Runs one target.

    Attributes:
        num_rounds: that have passed. failure: the seed of the round that failed, if one has.
    """

    def __init__(self, name: str, say: Callable[[str], None] = print):
        self.name = name
        self.num_rounds = 0
        self.failure: int | None = None
        self._say = say

    def run(self, target: Target, seed: int, seconds: float, rounds: int | None = None) -> bool:
        """Rounds until the time is over or one fails; whether all have passed."""
        started = reported = time.monotonic()
        sizes: list[tuple[float, int]] = []
        while (elapsed := time.monotonic() - started) < seconds and self.num_rounds != rounds:
            number = seed + self.num_rounds
            try:
                target.round(random.Random(number))
            except BaseException:
                self.failure = number
                self._say(traceback.format_exc())
                self._say(f"{self.name}: FAILED; replay: make fuzz TARGET={self.name} SEED={number} ROUNDS=1")
                return False
            self.num_rounds += 1
            sizes.append((elapsed, target.resident_bytes()))
            if time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                self._say(self._summary(target, seed, elapsed))
        self._say(self._summary(target, seed, time.monotonic() - started))
        return self._has_kept_its_size(sizes, seconds)

    def _summary(self, target: Target, seed: int, elapsed: float) -> str:
        counts = ", ".join(f"{number} {what}" for what, number in target.counts.items())
        return f"{self.name}: {self.num_rounds} rounds from seed {seed} in {elapsed:.0f} s: {counts}"

    def _has_kept_its_size(self, sizes: list[tuple[float, int]], seconds: float) -> bool:
        settled = [size for elapsed, size in sizes if elapsed > WARM_UP * seconds]
        growth = settled[-1] - settled[0] if len(settled) > 10 else 0
        self._say(f"{self.name}: memory grew by {growth / 2**20:.0f} MiB after the first {WARM_UP:.0%} of the time")
        return growth < GROWTH_BYTES


def main(arguments: Iterable[str] | None = None) -> int:
    """The exit status: 0 if every target has passed."""
    from .targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="for each target (default: %(default)s)")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="default: all, one after the other")
    parser.add_argument("--seed", type=int, help="of the first round (default: the time)")
    parser.add_argument("--rounds", type=int, help="at most so many")
    args = parser.parse_args(None if arguments is None else list(arguments))
    seed = int(time.time()) if args.seed is None else args.seed
    passed = True
    for name in args.target or TARGETS:
        with tempfile.TemporaryDirectory(prefix="lullm-fuzz-") as folder:
            print(f"{name}: seed {seed}", flush=True)
            target = TARGETS[name](Path(folder))
            try:
                campaign = Campaign(name, lambda text: print(text, flush=True))
                passed &= campaign.run(target, seed, args.seconds, args.rounds)
            finally:
                target.close()
    return 0 if passed else 1


if __name__ == "__main__":
    logging.getLogger("lullm").setLevel(logging.CRITICAL)  # what is logged of hostile requests is no finding
    raise SystemExit(main())
