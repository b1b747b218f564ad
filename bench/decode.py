"""Decode steps, recorded and eager, in turn: two engines in one process, some steps of one, then of the other.

    python bench/decode.py                               the demo model
    python bench/decode.py --shape qwen3-0.6b            a real model's shape with dummy weights
    python bench/decode.py --streams 1 --streams 8 --steps 400

Printed: milliseconds per step of the whole engine (plan, batch, model, draw, apply, text), greedy: the median over all
steps of each kind, and the tenth and ninetieth percentile; and how much of a recorded step is outside of its replay:
Python's plan, batch, apply and text.
"""

import argparse
import random
import tempfile
import time

import numpy as np
from shape import add_model_flags, model_options

BURST = 20  # steps of one engine in a row: the first one after a change of engines meets cold caches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_flags(parser)
    parser.add_argument("--streams", type=int, action="append", help="may be given several times (default: 1, 8, 32)")
    parser.add_argument("--steps", type=int, default=200, help="of each kind (default: 200)")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--quantization", choices=("int8", "int4"), help="of the matrices (default: as dtype says)")
    args = parser.parse_args()

    from lullm import EngineConfig
    from lullm.engine.llm_engine import LLMEngine

    options = {"quantization": args.quantization, "enable_prefix_caching": False, "num_gpu_blocks_override": 4096}
    with tempfile.TemporaryDirectory() as folder:
        options |= model_options(folder, args.shape, args.model, max_model_len=4096)
        engines = {
            name: LLMEngine(EngineConfig(**options, enforce_eager=name == "eager")) for name in ("recorded", "eager")
        }
    print(f"{args.shape or args.model}, {args.quantization or engines['eager'].config.dtype}; ms per step", flush=True)
    for num_streams in args.streams or (1, 8, 32):
        found, replays = measure(engines, num_streams, args.steps, args.input_len)
        medians = {name: np.median(times) for name, times in found.items()}
        outside = np.median(np.subtract(found["recorded"], replays))
        print(
            f"{num_streams:3} streams  "
            + "  ".join(f"{name} {medians[name]:7.3f} ({spread(found[name])})" for name in found)
            + f"  saved {medians['eager'] - medians['recorded']:6.3f}, {medians['eager'] / medians['recorded']:.2f} x"
            + f"  outside {outside:.3f}, {outside / medians['recorded']:.1%}",
            flush=True,
        )


def measure(
    engines: dict, num_streams: int, num_steps: int, input_len: int
) -> tuple[dict[str, list[float]], list[float]]:
    """Milliseconds of each step, by kind, and of the replay in each recorded one."""
    from lullm import SamplingParams
    from lullm.ops.cpu.recording import Recording

    rng = random.Random(0)
    params = SamplingParams(temperature=0.0, max_tokens=2 * num_steps + 64, ignore_eos=True)
    found: dict[str, list[float]] = {name: [] for name in engines}
    replays: list[float] = []
    replay, spent = Recording.replay, [0.0]

    def timed_replay(recording: Recording) -> bool:
        started = time.perf_counter()
        is_done = replay(recording)
        spent[0] += 1e3 * (time.perf_counter() - started)
        return is_done

    Recording.replay = timed_replay
    for engine in engines.values():
        for number in range(num_streams):
            engine.add_request(str(number), [rng.randrange(10, 2000) for _ in range(input_len)], params)
        while len(engine.step()) < num_streams:
            pass  # prompts
    while len(found["eager"]) < num_steps:
        for name, engine in engines.items():
            engine.step()
            for _ in range(BURST):
                started, spent[0] = time.perf_counter(), 0.0
                engine.step()
                found[name].append(1e3 * (time.perf_counter() - started))
                if name == "recorded":
                    replays.append(spent[0])
    for engine in engines.values():
        for number in range(num_streams):
            engine.abort_request(str(number))
        while engine.has_unfinished_requests():
            engine.step()
    Recording.replay = replay
    return found, replays


def spread(times: list[float]) -> str:
    return "{:.3f}-{:.3f}".format(*np.percentile(times, (10, 90)))


if __name__ == "__main__":
    main()
