"""A whole engine over the kernels: staging, recorded steps, overlap and drawing on the device, by the interpreter."""

import pytest
import torch
from kit.device.fake_device import FakeDevice
from kit.engine.parts import model_of, use_device, use_ops
from kit.folder.checkpoint import write_checkpoint

from lullm import LLM, SamplingParams
from lullm.nn.kv_scale import KVScales
from lullm.ops.triton.device import IS_INTERPRETED
from lullm.ops.triton.table import INVARIANT_OPS, TRITON_OPS

PROMPTS = [[5, 6, 7, 8] * 5, [9, 10], [11, 12, 13]]
LONG_PROMPTS = [[5, 6, 7, 8] * 9, *PROMPTS[1:]]  # longer than the window
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.8, seed=1, max_tokens=4),
    SamplingParams(temperature=1.0, top_k=5, seed=3, max_tokens=3, presence_penalty=0.3),
]


def tokens(folder, **options):
    sizes = {"max_model_len": 64, "max_num_seqs": 3, "max_num_batched_tokens": 32, "num_gpu_blocks_override": 20}
    with LLM(str(folder), dtype="float32", swap_space=0, **sizes, **options) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(LONG_PROMPTS, PARAMS, use_tqdm=False)]


def use_kernels(monkeypatch, device, ops=TRITON_OPS):
    use_device(monkeypatch, device)
    use_ops(monkeypatch, ops)


pytestmark = pytest.mark.skipif(
    not IS_INTERPRETED, reason="the fake device's memory is the host's; tests/gpu has a real one"
)


def test_the_cpu_says_the_same(tmp_path, monkeypatch):
    """The first layer sees a window, the second all."""
    windows = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True, "sliding_window": 32}
    folder = write_checkpoint(tmp_path, "qwen3", num_hidden_layers=2, **windows)
    expected = tokens(folder)
    device = FakeDevice()
    use_kernels(monkeypatch, device)
    assert tokens(folder, async_scheduling=True) == expected
    assert [name for name, _ in device.calls].count("replay") >= 2


@pytest.mark.slow  # the kernels' own bits are compared in test_batch_invariance.py
def test_batch_invariant_kernels_give_the_same_bits_alone_and_together(qwen3_folder, monkeypatch):
    device = FakeDevice()
    use_kernels(monkeypatch, device, INVARIANT_OPS)
    sizes = {"max_model_len": 64, "max_num_seqs": 3, "num_gpu_blocks_override": 20, "batch_invariant": True}
    params = [p.replace(logprobs=0, max_tokens=3) for p in PARAMS]
    found = []
    for chunk, eager, batch in ((64, True, 1), (16, False, 3)):
        with LLM(
            str(qwen3_folder), dtype="float32", swap_space=0, max_num_batched_tokens=chunk, enforce_eager=eager, **sizes
        ) as llm:
            groups = [range(first, first + batch) for first in range(0, 3, batch)]
            outputs = [
                output
                for group in groups
                for output in llm.generate([PROMPTS[i] for i in group], [params[i] for i in group], use_tqdm=False)
            ]
        found.append([(o.outputs[0].token_ids, o.outputs[0].cumulative_logprob) for o in outputs])
    assert found[0] == found[1]
    assert [name for name, _ in device.calls].count("replay") >= 1


def test_an_fp8_cache(qwen3_folder, monkeypatch):
    """Over the kernels as over torch's ops: the scales of the first batch, and what is said with them."""
    params = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=0)
    sizes = {"max_model_len": 64, "max_num_seqs": 2, "max_num_batched_tokens": 32, "num_gpu_blocks_override": 8}
    found = []
    for on_device in (False, True):
        if on_device:
            use_kernels(monkeypatch, FakeDevice())
        with LLM(
            str(qwen3_folder), dtype="float32", swap_space=0, kv_cache_dtype="fp8", calculate_kv_scales=True, **sizes
        ) as llm:
            outputs = llm.generate(PROMPTS[:2], params, use_tqdm=False)
            model = model_of(llm)
        scales = torch.stack([torch.stack((s.k_scale, s.v_scale)) for s in model.modules() if isinstance(s, KVScales)])
        said = [next(iter(position.values())).logprob for o in outputs for position in o.prompt_logprobs[1:]]
        found.append(([o.outputs[0].token_ids for o in outputs], torch.tensor(said), scales))
    (host_tokens, host_said, host_scales), (tokens, said, scales) = found
    torch.testing.assert_close(scales[0], host_scales[0])  # the layers above have seen roundings that fell otherwise
    torch.testing.assert_close(scales, host_scales, rtol=0.05, atol=0)
    assert (said - host_said).abs().mean() < 0.02 and tokens == host_tokens
