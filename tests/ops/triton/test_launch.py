"""Launches past Triton's launcher: the driver gets what that would pass, and another kernel where that compiles one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lullm.ops.triton import decode_attention, device
from lullm.ops.triton.elementwise import RMS_NORM, rms_norm
from lullm.ops.triton.launch import Kernel


@pytest.fixture(scope="module")
def report(pytestconfig):
    cache = str(pytestconfig.cache.mkdir("triton"))  # as in test_compile.py
    script = Path(__file__).with_name("launch_kernels.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_driver_gets_what_triton_would_pass(report):
    assert len(report["alike"]) == 5 and all(report["alike"].values()), report["alike"]


def test_another_kind_of_argument_is_another_kernel(report):
    """An address that is no multiple of 16, launched into what was compiled for one, would read beside the tensor."""
    assert report["rows"] == 1, "any number of rows"
    assert report["unaligned"] == 2 and report["float32, no residual"] == 3
    assert report["variants"] == 3 + 1, "and the norm of the layer"


def test_a_profiler_sees_every_launch(report):
    assert report["hooked"] == [True, True]


def test_interpreted_kernels_have_variants_too():
    import torch

    if not device.IS_INTERPRETED:
        pytest.skip("a GPU is here")
    before = RMS_NORM.variants
    for dtype in (torch.float32, torch.float32, torch.float64):
        rms_norm(torch.ones(1, 24, dtype=dtype), torch.ones(24, dtype=dtype), 1e-5)
    assert len(RMS_NORM.variants - before) == 2


def test_constants_stand_last():
    """They are appended to the arguments."""
    import triton
    import triton.language as tl

    def kernel(SIZE: tl.constexpr, x_ptr):
        pass

    with pytest.raises(AssertionError, match="behind the arguments"):
        Kernel(triton.jit(kernel))
    assert decode_attention.DECODE._constants[:2] == ["NUM_KV_HEADS", "GROUP"]


@pytest.mark.parametrize(
    "query_lens, expected",
    [([5, 3], ["prefill"]), ([4, 4], ["prefill"]), ([5, 1], ["prefill", "decode"]), ([1, 1], ["decode"])],
    ids=str,
)
def test_no_kernel_is_launched_for_no_rows(monkeypatch, query_lens, expected):
    """Prompts of unequal lengths had an idle decode kernel per layer: 20 us of the host each."""
    import torch

    from lullm.ops.attention_layout import AttentionLayout, CausalScores
    from lullm.ops.cache.layer_cache import LayerCache
    from lullm.ops.device_layout import DeviceLayout
    from lullm.ops.triton import attention

    launched = []
    for kind in ("prefill", "decode"):
        monkeypatch.setattr(attention, f"launch_{kind}", lambda *_, kind=kind: launched.append(kind))
    tables = torch.zeros(len(query_lens), 1, dtype=torch.int64)
    slots = torch.zeros(sum(query_lens), dtype=torch.int64)
    layout = DeviceLayout.of(AttentionLayout(query_lens, query_lens, tables, slots, 16))
    cache = LayerCache(torch.zeros(1, 16, 1, 16), torch.zeros(1, 16, 1, 16))
    attention.attention(torch.zeros(sum(query_lens), 1, 16), cache, layout, CausalScores(1.0))
    assert launched == expected
