"""No leak: resident memory and the engine's own books after a hundred thousand requests."""

import os
import subprocess
import sys

import pytest

SOAK = """
import sys
from kit.engine.parts import block_space_of, open_requests_of, scheduler_of

from lullm import LLM, SamplingParams
from lullm.machine.memory import resident_bytes

llm = LLM(sys.argv[1], dtype="float32", max_model_len=64, num_gpu_blocks_override=64)
engine = llm.llm_engine
found = []
for batch in range(100):
    params = SamplingParams(temperature=0.0, max_tokens=1 + batch % 3, ignore_eos=True, logprobs=batch % 2)
    prompts = [[3 + (batch * 7 + i) % 300, 4 + i % 290, 5] for i in range(1000)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert len(outputs) == 1000
    del outputs
    found.append(resident_bytes())
block_space_of(engine).check_conservation()
assert open_requests_of(engine) == {} and len(scheduler_of(engine).roster) == 0
assert block_space_of(engine)._tables == {} and scheduler_of(engine).roster._members == {}
assert sum(engine.stats().finished_total.values()) == 100_000
print((found[-1] - found[20]) / 2**20)
"""


@pytest.mark.slow
def test_a_hundred_thousand_requests(qwen3_folder):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SOAK, str(qwen3_folder)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 8, "MiB of growth over the last 80,000 requests"
