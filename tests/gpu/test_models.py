"""Models of other kinds than plain heads on the fake GPU: the CPU's tokens, replayed, with sleep of both levels."""

import pytest
import torch
from kit.folder.checkpoint import write_tokenizer
from kit.model.families import CASES
from kit.model.golden import SIZES, random_model

from lullm import LLM, SamplingParams

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the real thing is here; tests/gpu runs on it")

OPTIONS = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 2, "max_num_batched_tokens": 20}
PROMPTS = [[5, 6, 7] * 7, [9, 10, 11, 12]]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=3, max_tokens=3, ignore_eos=True, logprobs=1),
]
SLOW = ("Qwen3Moe", "Qwen3Next", "NemotronH", "Mamba", "GptOss", "Gemma2", "Gemma3n", "Gemma4", "Bloom")
"""Experts, recurrent states, state spaces, no attention, sinks, soft caps, several streams, heads of two sizes, ALiBi.
DeepSeek has latents, whose attention is torch's: it is not recorded."""


@pytest.mark.parametrize("family", ["DeepseekV3", *(pytest.param(family, marks=pytest.mark.slow) for family in SLOW)])
def test_a_family_says_what_it_says_on_a_cpu(tmp_path, gpu, family):
    folder = str(tmp_path)
    sizes = SIZES | {"vocab_size": 320} | ({"num_hidden_layers": 2} if family == "DeepseekV3" else {})
    random_model(family, sizes | CASES[family].engine).save_pretrained(folder)
    write_tokenizer(tmp_path)
    with LLM(folder, device="cpu", **OPTIONS) as llm:
        expected = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    options = OPTIONS | {"num_gpu_blocks_override": 24, "swap_space": 0, "enable_sleep_mode": True}
    with LLM(folder, device="cuda", **options) as llm:
        for level in (1, 2):
            assert [o.outputs[0].token_ids for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)] == expected
            llm.sleep(level)
            llm.wake_up()
    assert (gpu.num_replays > 0) == (family != "DeepseekV3")
