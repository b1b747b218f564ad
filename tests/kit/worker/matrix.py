"""One workload for workers in every layout and by every executor: its tokens are those of one worker.

It is also what torchrun starts: python tests/kit/worker/matrix.py FOLDER OUT LAYOUT PREEMPTION
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.engine.prompts import random_prompts
from kit.engine.same_tokens import tokens_of

from lullm import LLM, SamplingParams

LAYOUTS = {
    "one": {},
    "tp=2": {"tensor_parallel_size": 2},
    "tp=4": {"tensor_parallel_size": 4},  # two of them hold each of 2 key heads
    "pp=2": {"pipeline_parallel_size": 2},
    "pp=3": {"pipeline_parallel_size": 3},
    "tp=2, pp=2": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    "ep=2": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    "dp=2": {"data_parallel_size": 2},
}
PREEMPTIONS = ("swap", "recompute")
EXECUTORS = ("mp", "ray", "torchrun")
OPTIONS = {
    "dtype": "float32",
    "max_model_len": 128,
    "block_size": 8,
    "num_gpu_blocks_override": 20,
    "enable_sleep_mode": True,
}
PROMPTS = random_prompts(8, 40)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
FOUR = SamplingParams(temperature=0.9, seed=3, n=4, max_tokens=12, ignore_eos=True)


@dataclass(frozen=True)
class Row:
    """An engine to be compared with one worker."""

    executor: str
    layout: str
    preemption: str

    def __str__(self) -> str:
        return f"{self.executor}, {self.layout}, {self.preemption}"

    @property
    def num_processes(self) -> int:
        sizes = [size for name, size in LAYOUTS[self.layout].items() if name.endswith("_size")]
        return sizes[0] * (sizes[1] if len(sizes) > 1 else 1)


QUICK = Row("mp", "tp=2", "swap")
ROWS = [
    Row(executor, layout, preemption)
    for executor in EXECUTORS
    for layout in LAYOUTS
    for preemption in PREEMPTIONS
    if layout != "one"
]


def options_of(layout: str, preemption: str) -> dict[str, Any]:
    """An engine's."""
    return OPTIONS | LAYOUTS[layout] | {"preemption_mode": preemption, "swap_space": 0.004}


def run_workload(llm: LLM) -> dict[str, Any]:
    """`tokens` by what was asked; `actions`: how groups were preempted; `num_hits` of the prefix cache."""
    tokens = {
        "greedy": tokens_of(llm.generate(PROMPTS, GREEDY, use_tqdm=False)),
        "again": tokens_of(llm.generate(PROMPTS, GREEDY, use_tqdm=False)),
        "n=4": tokens_of(llm.generate(PROMPTS, FOUR, use_tqdm=False)),
        "beams": tokens_of(llm.beam_search(PROMPTS[:3], 3, 10, ignore_eos=True)),
        "asleep in between": _with_sleeps(llm),
    }
    stats = llm.llm_engine.stats()
    actions = sorted({action for action, _ in stats.preemptions_total})
    return {"tokens": tokens, "actions": actions, "num_hits": stats.prefix_cache_hits_total}


def _with_sleeps(llm: LLM) -> list[list[int]]:
    """Greedy tokens; every level comes while requests are under way."""
    engine, found = llm.llm_engine, {}
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), prompt, GREEDY)
    levels = [0, 1, 2]
    for step in range(2000):
        if step % 4 == 3 and levels:
            assert engine.has_unfinished_requests()
            engine.sleep(level=levels.pop(0), mode="keep")
            engine.wake_up()
        for output in engine.step():
            found[output.request_id] = list(output.outputs[0].token_ids)
        if not engine.has_unfinished_requests():
            break
    assert not levels
    return [found[str(number)] for number in range(len(PROMPTS))]


if __name__ == "__main__":
    folder, out, layout, preemption = sys.argv[1:]
    options = options_of(layout, preemption)
    options.pop("data_parallel_size", None)  # more processes than workers are several engines
    with LLM(folder, distributed_executor_backend="external_launcher", **options) as llm:
        (Path(out) / f"{os.environ['RANK']}.json").write_text(json.dumps(run_workload(llm)))
