"""The same tokens from every version of the ops (fp32, greedy): native, torch, and the golden reference."""

import pytest
from kit.engine.parts import use_ops
from kit.engine.prompts import random_prompts

from lullm import LLM, SamplingParams
from lullm.ops.cpu.library import absence
from lullm.ops.selection import NATIVE_CPU_OPS, REFERENCE_OPS, TORCH_CPU_OPS

GREEDY = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)


@pytest.mark.skipif(absence() is not None, reason="the native ops are not built here")
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_same_tokens_from_every_version(family, request, monkeypatch):
    folder = request.getfixturevalue(f"{family}_folder")
    found = {}
    for ops in (REFERENCE_OPS, TORCH_CPU_OPS, NATIVE_CPU_OPS):
        use_ops(monkeypatch, ops)
        with LLM(str(folder), dtype="float32", max_model_len=128, max_num_batched_tokens=48, max_num_seqs=16) as llm:
            outputs = llm.generate(random_prompts(8, 60), GREEDY, use_tqdm=False)
        found[ops.name] = [output.outputs[0].token_ids for output in outputs]
    assert found["torch_cpu"] == found["reference"]
    assert found["native_cpu"] == found["reference"]
