"""A whole engine over the kernels: staging, recorded steps, overlap and drawing on the device, by the interpreter."""

import pytest
from fake_device import FakeDevice

from lullm import LLM, SamplingParams
from lullm.ops.triton.device import IS_INTERPRETED
from lullm.ops.triton.table import TRITON_OPS

PROMPTS = [[5, 6, 7, 8] * 5, [9, 10], [11, 12, 13]]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.8, seed=1, max_tokens=4),
    SamplingParams(temperature=1.0, top_k=5, seed=3, max_tokens=3, presence_penalty=0.3),
]


def tokens(folder, **options):
    sizes = {"max_model_len": 64, "max_num_seqs": 3, "max_num_batched_tokens": 32, "num_gpu_blocks_override": 20}
    with LLM(str(folder), dtype="float32", swap_space=0, **sizes, **options) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.mark.skipif(not IS_INTERPRETED, reason="the fake device's memory is the host's; tests/gpu has a real one")
def test_the_cpu_says_the_same(qwen3_folder, monkeypatch):
    expected = tokens(qwen3_folder)
    device = FakeDevice()
    monkeypatch.setattr("lullm.worker.model_runner.open_device", lambda name: device)
    monkeypatch.setattr("lullm.worker.model_runner.select_ops", lambda *args: TRITON_OPS)
    assert tokens(qwen3_folder, async_scheduling=True) == expected
    assert [name for name, _ in device.calls].count("replay") >= 2
