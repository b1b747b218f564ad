"""What a GPU's step costs the host, without a GPU: microseconds of Python per launch and per layer.

The kernels are compiled for compute capability 9.0 and launched by a driver of no device (`NoDevice`), whose last call,
into the GPU's own driver, is missing here: some 2 us of each launch. Every launch is timed by Triton's own launcher and
by lullm's (`ops/triton/launch.py`). Torch's part of a layer, four matrix products, is not in it.

    python bench/gpu_host.py
"""

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

os.environ["TRITON_INTERPRET"] = "0"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

REPEAT = 300
ROUNDS = 9
NUM_LAYERS = 28


class NoDevice:
    """In the place of Triton's driver. `launches`: the arguments of every launch; None: they are not kept."""

    def __init__(self) -> None:
        self.launches: list[tuple[object, ...]] | None = None
        self.num_loaded = 0
        self.utils = SimpleNamespace(
            load_binary=self._load, unload_module=lambda module: None, get_device_properties=self._properties
        )

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        def launch(*arguments: object) -> None:
            if self.launches is not None:
                self.launches.append(arguments)

        return launch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def _load(self, *facts: object) -> tuple[int, int, int, int, int]:
        self.num_loaded += 1
        return self.num_loaded, self.num_loaded, 32, 0, 1024

    def _properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 227 << 10, "multiprocessor_count": 132, "warpSize": 32, "max_num_regs": 1 << 16}


def stand_in() -> NoDevice:
    """Put the driver in place, and torch's facts of an H200."""
    made = NoDevice()
    driver.set_active(made)
    facts = SimpleNamespace(multi_processor_count=132)
    for name, value in {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: facts,
    }.items():
        mock.patch(f"torch.cuda.{name}", value).start()
    return made


def ops() -> dict[str, Callable[[], object]]:
    """The launches of one layer of Qwen3-0.6B: a step of 62 tokens of prompts, and one that has a decode beside it."""
    from lullm.ops.attention_layout import AttentionLayout, CausalScores
    from lullm.ops.cache.layer_cache import LayerCache
    from lullm.ops.device_layout import DeviceLayout
    from lullm.ops.triton.attention import attention
    from lullm.ops.triton.elementwise import add_rms_norm, silu_mul
    from lullm.ops.triton.rope_cache import rope_and_cache

    bf16, num_rows = torch.bfloat16, 63
    cache = LayerCache(*(torch.zeros(64, 16, 8, 128, dtype=bf16) for _ in range(2)))

    def layout(query_lens: list[int]) -> DeviceLayout:
        tables = torch.zeros(len(query_lens), 8, dtype=torch.int64)
        slots = torch.zeros(num_rows, dtype=torch.int64)
        on_host = AttentionLayout(query_lens, [100] * len(query_lens), tables, slots, 16)
        return DeviceLayout.of(on_host, index_dtype=torch.int32, semaphores_per_span=128)

    prompts, mixed = layout([60, 3]), layout([59, 3, 1])
    x, weight = torch.zeros(num_rows, 1024, dtype=bf16), torch.zeros(1024, dtype=bf16)
    residual, positions = torch.zeros_like(x), torch.zeros(num_rows, dtype=torch.int64)
    qkv, q = torch.zeros(num_rows, 32, 128, dtype=bf16), torch.zeros(num_rows, 16, 128, dtype=bf16)
    cos_sin, gate_up = torch.zeros(128, 128), torch.zeros(num_rows, 6144, dtype=bf16)
    return {
        "norm": lambda: add_rms_norm(x, residual, weight, 1e-6),
        "rope and cache": lambda: rope_and_cache(qkv, None, positions, cos_sin, cache, prompts.slot_mapping),
        "attention, prompts": lambda: attention(q, cache, prompts, CausalScores(0.1)),
        "attention, mixed": lambda: attention(q, cache, mixed, CausalScores(0.1)),
        "activation": lambda: silu_mul(gate_up),
    }


def seconds_of(call: Callable[[], object]) -> float:
    """The best of some rounds, in this thread's own time: others use the machine, too."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.thread_time()
        for _ in range(REPEAT):
            call()
        best = min(best, (time.thread_time() - started) / REPEAT)
    return best


def penalties(num_seqs: int = 32, num_tokens: int = 4096, vocab_size: int = 151_936) -> tuple[float, float]:
    """Seconds of the host for the penalties of a step of decodes: (lists of all tokens, what is new).

    Without the copies to the device: 3 MB, and 1 KB.
    """
    from lullm.sampling.penalties import count_output_tokens
    from lullm.sampling.token_counts import TokenCounts
    from lullm.types.draw import Draw, DrawParams, LogitEdits
    from lullm.types.packed import pack

    tokens = torch.randint(0, vocab_size, (num_seqs, num_tokens + ROUNDS)).tolist()
    params = DrawParams(edits=LogitEdits(presence_penalty=1.0))
    counts = TokenCounts(vocab_size)
    counts._free = list(range(num_seqs))

    def draws(step: int) -> list[Draw]:
        ends = num_tokens + step
        return [Draw(i, 0, params, ends - 100, pack(tokens[i][:ends])) for i in range(num_seqs)]

    steps = [draws(step) for step in range(ROUNDS)]
    counts.arrivals(steps[0])
    best = [float("inf"), float("inf")]
    calls = (lambda step: count_output_tokens(step, range(num_seqs), vocab_size), counts.arrivals)
    for step in steps[1:]:
        for place, call in enumerate(calls):
            started = time.perf_counter()
            call(step)
            best[place] = min(best[place], time.perf_counter() - started)
    return best[0], best[1]


def main() -> None:
    device = stand_in()
    from lullm.ops.triton.launch import Kernel

    found: dict[str, tuple[float, float]] = {}
    for name, call in ops().items():
        call()
        direct = seconds_of(call)
        with mock.patch.object(Kernel, "__getitem__", lambda kernel, grid: kernel._jit[grid]):
            call()
            found[name] = seconds_of(call), direct
    print(f"triton {triton.__version__}, {device.num_loaded} kernels; us of the host per call")
    print("| call | by Triton's launcher | by lullm's |\n|---|--:|--:|")
    for name, (before, after) in found.items():
        print(f"| {name} | {before * 1e6:.0f} | {after * 1e6:.0f} |")
    for name in ("prompts", "mixed"):
        parts = [found[part] for part in ("norm", "norm", "rope and cache", f"attention, {name}", "activation")]
        before, after = (sum(part[side] for part in parts) * 1e6 for side in (0, 1))
        print(f"| a layer, {name} | {before:.0f} | {after:.0f} |")
        print(f"| {NUM_LAYERS} layers, {name}, ms | {before * NUM_LAYERS / 1e3:.1f} | {after * NUM_LAYERS / 1e3:.1f} |")
    before, after = penalties()
    print(f"penalties of 32 sequences of 4,096 tokens: {before * 1e3:.2f} ms, kept on the device {after * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
