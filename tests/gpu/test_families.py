"""Models of every family on a GPU: the CPU's tokens, in chunks, recorded and replayed, after sleeps of both levels.

Run by `make gpu-check GPU_CHECK="--only family-tests"`; `test_models.py` has some of them on the fake GPU.
"""

import pytest
import torch
import transformers
from kit.folder.checkpoint import write_tokenizer
from kit.model.families import CASES
from kit.model.golden import SIZES, architecture_of, random_model, save

from lullm import LLM, SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

OPTIONS = {"dtype": "float32", "max_model_len": 96, "max_num_seqs": 2, "max_num_batched_tokens": 20}
ON_GPU = {"device": "cuda", "num_gpu_blocks_override": 48, "swap_space": 0, "enable_sleep_mode": True}
PROMPTS = [[5, 6, 7] * 13, [9, 10, 11, 12]]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True),
]


def tokens(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.mark.parametrize("family", CASES)
def test_a_family_says_what_it_says_on_a_cpu(tmp_path, family):
    names = (architecture_of(family), f"{family}Config")
    if not any(hasattr(transformers, name) for name in names):
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    save(random_model(family, SIZES | {"vocab_size": 320} | CASES[family].engine), tmp_path)
    write_tokenizer(tmp_path)
    with LLM(str(tmp_path), device="cpu", **OPTIONS) as llm:
        expected = tokens(llm)
    with LLM(str(tmp_path), **OPTIONS, **ON_GPU) as llm:
        assert tokens(llm) == expected
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert tokens(llm) == expected
