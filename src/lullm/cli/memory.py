"""`lullm memory`: runs a small mixed workload and draws the request that held each KV block at each step."""

import argparse
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lullm.cli.flag.engine import CLIENT_OPTIONS, REPLY_OPTIONS, add_engine_flags, engine_config
from lullm.draw.block_map import BlockMap
from lullm.errors import ConfigError
from lullm.types.sampling_params import SamplingParams

if TYPE_CHECKING:
    from lullm.engine.llm_engine import LLMEngine

NOT_ENGINE = CLIENT_OPTIONS | REPLY_OPTIONS
# The pool is too small for the workload, to show preemption.
DEFAULTS = {"num_gpu_blocks_override": 64, "max_num_seqs": 16, "max_num_batched_tokens": 128, "preemption_mode": "swap"}


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of the workload. Its lengths and its step of arrival are shares of the pool's slots."""

    when: float
    name: str
    prompt_share: float
    output_share: float
    n: int = 1
    beam_width: int | None = None
    has_system_prompt: bool = False


SYSTEM_SHARE = 0.06  # length of the chats' common prefix
WORKLOAD = (
    Arrival(0.0, "chat-1", 0.04, 0.07, has_system_prompt=True),
    Arrival(0.0, "long", 0.30, 0.06),
    Arrival(0.006, "n=3", 0.07, 0.06, n=3),
    Arrival(0.012, "chat-2", 0.03, 0.09, has_system_prompt=True),
    Arrival(0.018, "beam=3", 0.05, 0.05, beam_width=3),
    Arrival(0.024, "chat-3", 0.06, 0.08, has_system_prompt=True),
    Arrival(0.03, "story", 0.12, 0.08),
    Arrival(0.036, "chat-4", 0.02, 0.06, has_system_prompt=True),
    Arrival(0.09, "late", 0.20, 0.03),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm memory`."""
    parser.description = (
        "Run a mixed workload (chats with a common prefix, a long prompt, n=3, a beam search) in a pool "
        "that is too small for it, and draw the blocks of both pools over time. Prompts are random tokens. Unless "
        "given: " + ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in DEFAULTS.items()) + "."
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="write a picture, too")
    add_engine_flags(parser, without=NOT_ENGINE)
    parser.set_defaults(run=run, not_engine=NOT_ENGINE)


def run(args: argparse.Namespace) -> int:
    """Run the workload and draw. Raises LullmError."""
    for name, value in DEFAULTS.items():
        if not hasattr(args, name):
            setattr(args, name, value)
    config = engine_config(args)
    if args.png is not None and not args.png.parent.is_dir():
        raise ConfigError(f"--png: the folder {args.png.parent} does not exist")
    # Torch is loaded here, after the flags are checked.
    from lullm.engine.llm_engine import LLMEngine
    from lullm.log import log_to_stderr

    log_to_stderr("WARNING")
    block_map = BlockMap()
    peak = saved = 0
    engine = LLMEngine(config)
    try:
        for step in _steps(engine):
            snapshot = engine.memory_snapshot()
            block_map.add(step, snapshot)
            peak = max(peak, snapshot.device.count("used"))
            saved = max(saved, snapshot.device.num_saved)
        stats = engine.stats()
    finally:
        engine.shutdown()
    print(block_map.text(shutil.get_terminal_size((120, 24)).columns))
    print(block_map.legend())
    actions = ", ".join(f"{action} ({reason}) {num}" for (action, reason), num in stats.preemptions_total.items())
    print(
        f"{stats.steps_total} steps; at most {peak} of {stats.num_blocks} blocks used, and {saved} saved by sharing; "
        f"{stats.prefix_cache_hits_total} prompt tokens found in the prefix cache; preemptions: {actions or 'none'}"
    )
    if args.png is not None:
        try:
            block_map.write_png(args.png, f"KV blocks over {stats.steps_total} steps, {engine.config.model}")
        except OSError as error:
            raise ConfigError(f"--png: {error}") from error
        print(f"wrote {args.png}", file=sys.stderr)
    return 0


def _steps(engine: "LLMEngine") -> Iterator[int]:
    """Add the requests as they arrive, and step until all have ended. Yields after each step, with its number."""
    waiting = list(WORKLOAD)
    step = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and (_num_tokens(engine, waiting[0].when) <= step + 1 or not engine.has_unfinished_requests()):
            arrival = waiting.pop(0)
            engine.add_request(arrival.name, _prompt(engine, arrival), _params(engine, arrival))
        engine.step()
        step += 1
        yield step


def _num_tokens(engine: "LLMEngine", share: float) -> int:
    """A share of the pool, in tokens; the pool counts for at most one sequence of maximum length."""
    stats, config = engine.stats(), engine.config
    return max(1, int(share * min(stats.num_blocks * config.block_size, config.max_model_len)))


def _prompt(engine: "LLMEngine", arrival: Arrival) -> list[int]:
    def tokens(name: str, share: float) -> list[int]:
        rng = random.Random(name)
        return [rng.randrange(engine.model_config.vocab_size) for _ in range(_num_tokens(engine, share))]

    prefix = tokens("system", SYSTEM_SHARE) if arrival.has_system_prompt else []
    return prefix + tokens(arrival.name, arrival.prompt_share)


def _params(engine: "LLMEngine", arrival: Arrival) -> SamplingParams:
    return SamplingParams(
        max_tokens=_num_tokens(engine, arrival.output_share),
        ignore_eos=True,
        n=arrival.n,
        beam_width=arrival.beam_width,
    )
