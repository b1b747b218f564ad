"""No kernel is compiled for a request: every variant that options and requests reach was launched at the start."""

import pytest
import torch
from kit.folder.checkpoint import write_checkpoint

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


def kernels():
    """All kernels of the ops, by name."""
    from lullm.ops.triton import (
        block_copy,
        decode_attention,
        elementwise,
        prefill_attention,
        rope_cache,
    )
    from lullm.ops.triton.draw import race, threshold
    from lullm.ops.triton.launch import Kernel
    from lullm.ops.triton.product import few_rows, invariant

    attention = decode_attention, prefill_attention
    modules = *attention, block_copy, elementwise, few_rows, invariant, rope_cache, threshold, race
    found = {name: kernel for m in modules for name, kernel in vars(m).items() if isinstance(kernel, Kernel)}
    assert len(found) == 11
    return found


def variants():
    return {name: kernel.variants for name, kernel in kernels().items()}


@pytest.fixture(autouse=True)
def nothing_is_compiled():
    """What other tests of this process have launched is forgotten."""
    for kernel in kernels().values():
        kernel._compiled.clear()


def test_kernels_are_compiled_ahead_without_a_launch(tmp_path, gpu, monkeypatch):
    """Before the memory is measured; what such a step computes is undefined, and must not end up anywhere."""
    from lullm import LLM
    from lullm.worker import worker

    ahead, seen = worker.compile_ahead, []

    def watched(*args):
        before = gpu.num_launches
        ahead(*args)
        seen.append((gpu.num_launches - before, sum(map(len, variants().values()))))

    monkeypatch.setattr(worker, "compile_ahead", watched)
    monkeypatch.setattr(worker, "kv_memory_bytes", lambda *args: seen.append("measured") or 1 << 20)
    folder = str(write_checkpoint(tmp_path, "qwen3", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1))
    options = {"dtype": "float32", "max_model_len": 32, "max_num_seqs": 1, "enforce_eager": True}
    with LLM(folder, device="cuda", **options):
        assert seen == [(0, 0), "measured"] and all(
            len(found) for name, found in variants().items() if name not in ("LINEAR", "FEW_ROWS")
        )


GREEDY = {"temperature": 0.0, "max_tokens": 3, "ignore_eos": True}
OPTIONS = [
    {},
    pytest.param({"enforce_eager": True, "kv_cache_dtype": "fp8"}, marks=pytest.mark.slow),
    pytest.param({"batch_invariant": True, "logprobs_mode": "processed_logprobs"}, marks=pytest.mark.slow),
    pytest.param({"kv_cache_memory_bytes": 1 << 20, "num_gpu_blocks_override": None}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("family", ["qwen3", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_requests_compile_nothing(tmp_path, gpu, family, options):
    from lullm import LLM, SamplingParams

    if family == "gemma3" and options.get("batch_invariant"):
        pytest.skip("refused: heads of several sizes")
    layers = {"qwen3": 1, "gemma3": 2}[family]  # all are alike, or of two kinds
    model = {"num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 1}
    folder = str(write_checkpoint(tmp_path, family, **model))
    sizes = {"dtype": "float32", "max_model_len": 96, "max_num_seqs": 3, "max_num_batched_tokens": 48,
             "num_gpu_blocks_override": 9, "swap_space": 0.001, "preemption_mode": "swap",
             "block_size": 16}  # fmt: skip
    with LLM(folder, device="cuda", **{**sizes, **options}) as llm:
        at_start = variants()
        llm.generate([[5, 6, 7] * 11], SamplingParams(**GREEDY), use_tqdm=False)  # split: few tiles, many keys
        prompts = [[5, 6, 7] * 11 + [8], [9, 10], list(range(3, 40))]  # a prefix hit, and no room for all
        params = [
            SamplingParams(**GREEDY),
            SamplingParams(n=2, temperature=0.8, top_k=5, logprobs=2, max_tokens=12, seed=1, ignore_eos=True),
            SamplingParams(temperature=0.7, top_p=0.9, presence_penalty=0.5, max_tokens=8, seed=2, ignore_eos=True),
        ]
        llm.generate(prompts, params, use_tqdm=False)
        found = variants()
    new = {name: found[name] - at_start[name] for name in found if found[name] - at_start[name]}
    assert not new, f"compiled while serving: {new}"
    assert at_start["COPY"] and len(at_start["PREFILL"]) >= (1 if options.get("batch_invariant") else 2), "and split"
