"""What verifying costs: sleeps and wake-ups with checksums and without, in turn, in one process.

python bench/sleep_verify.py                            # the 0.6B shape, dummy weights: the KV cache is saved
python bench/sleep_verify.py --model DIR                # a checkpoint, all of whose weights a trainer has pushed again

Two engines differ in `verify_wake` alone, and go first in turn. Weights that were pushed have no file to come back
from, so level 1 saves every byte; requests that run (`mode='keep'`) add the KV blocks that they use.

The figure is the median, over the rounds, of a round's own ratio: with checksums / without, right after each other. A
host that must find memory adds seconds to single sleeps; a median of ratios leaves those rounds out whichever engine
they hit. Beside it stands the same ratio of the process's own user time, which waiting for memory does not touch:
copies and checksums are user time, page faults are not.
"""

import argparse
import json
import random
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shape import SHAPES

if TYPE_CHECKING:
    import torch

Seconds = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a checkpoint's folder, instead of dummy weights of a shape")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--num-prompts", type=int, default=8, help="requests that run while the engines sleep")
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--targets", nargs="+", choices=("ram", "disk"), default=["ram", "disk"])
    parser.add_argument("--sleep-dir", default=tempfile.gettempdir())
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SHAPES[args.shape]))
        engines = {verify: new_engine(args, folder, verify) for verify in (True, False)}
        figures: dict[str, Any] = {target: rounds(args, engines, target) for target in args.targets}
        for engine in engines.values():
            engine.shutdown()
    print("| backup | saved, MB | | without, s | with, s | ratio | quartiles | user s without | with | ratio | N |")
    print("|---|--:|---|--:|--:|--:|---|--:|--:|--:|--:|")
    for target, found in figures.items():
        for what in ("sleep", "wake"):
            print("|", " | ".join([target, f"{found['saved'][0] / 1e6:.0f}", what, *cells(found, what)]), "|")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


def cells(found: Seconds, what: str) -> list[str]:
    """The figures of all sleeps, or of all wake-ups."""
    made = []
    for clock in ("", "user "):
        plain, checked = found[f"{clock}{what} False"], found[f"{clock}{what} True"]
        ratios = sorted(with_sums / without for without, with_sums in zip(plain, checked, strict=True))
        made += [f"{statistics.median(plain):.3f}", f"{statistics.median(checked):.3f}"]
        made.append(f"{statistics.median(ratios):.2f}")
        if not clock:
            made.append(f"{ratios[len(ratios) // 4]:.2f}-{ratios[len(ratios) * 3 // 4]:.2f}")
    return [*made, str(len(found["saved"]) // 2)]


def new_engine(args: argparse.Namespace, folder: str, verify: bool):
    """An engine whose requests are all under way."""
    from lullm import SamplingParams
    from lullm.config.engine import EngineConfig
    from lullm.engine.llm_engine import LLMEngine

    engine = LLMEngine(
        EngineConfig.from_options({
            "model": str(args.model or folder), "tokenizer": "demo", "load_format": "auto" if args.model else "dummy",
            "max_model_len": 4096, "enable_sleep_mode": True, "sleep_dir": args.sleep_dir, "verify_wake": verify,
        })
    )  # fmt: skip
    if args.model:
        engine.update_weights(weights_of(args.model))
    rng = random.Random(0)
    params = SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True)
    for request in range(args.num_prompts):
        engine.add_request(str(request), [rng.randrange(10, 7900) for _ in range(args.input_len)], params)
    for _ in range(8):
        engine.step()
    return engine


def weights_of(folder: Path) -> Iterator[tuple[str, "torch.Tensor"]]:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            yield from ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118


def rounds(args: argparse.Namespace, engines: dict[bool, Any], target: str) -> Seconds:
    """Seconds of each sleep and wake-up. The first round, in which the memory of the backups is new, is left out."""
    found: Seconds = defaultdict(list)
    for number in range(args.repeat + 1):
        for verify in sorted(engines, reverse=number % 2 == 0):
            engine = engines[verify]
            sleep, report = timed(lambda: engine.sleep(level=1, backup=target, mode="keep"))  # noqa: B023
            wake, _ = timed(engine.wake_up)
            engine.step()
            if number:
                for what, (seconds, user) in (("sleep", sleep), ("wake", wake)):
                    found[f"{what} {verify}"].append(seconds)
                    found[f"user {what} {verify}"].append(user)
                found["saved"].append(report.backed_up_bytes)
    return found


def user_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def timed(work: Callable[[], Any]) -> tuple[tuple[float, float], Any]:
    """The seconds that passed and those of this process's own code, and what came out."""
    user, started = user_seconds(), time.perf_counter()
    outcome = work()
    return (time.perf_counter() - started, user_seconds() - user), outcome


if __name__ == "__main__":
    main()
