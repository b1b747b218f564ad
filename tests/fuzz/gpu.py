"""An engine over a GPU that is made up: its tokens are those of the CPU, and no line of its work is a fault.

Copies land when somebody waits for them, replays run without Python, released memory faults (`fake_cuda`). Kernels are
interpreted, so a round takes seconds.
"""

import os
import random
from pathlib import Path
from typing import Any

from lullm import LLM

from .engine import MAX_MODEL_LEN, EngineTarget


class GpuTarget(EngineTarget):
    """As `EngineTarget`, on the fake GPU, with what only a GPU has: graphs, steps ahead, pinned pools, kept backups."""

    num_actions, longest_prompt = 60, 40
    shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}

    def __init__(self, folder: Path):
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, by whatever comes first
        super().__init__(folder)
        from kit.device.fake_driver import FakeDriver, compile_driver

        self._driver = FakeDriver(compile_driver(folder))
        self._of_dtype: dict[str, LLM] = {"auto": self._alone, "fp8": self._new_alone(kv_cache_dtype="fp8")}

    def close(self) -> None:
        for llm in self._of_dtype.values():
            llm.shutdown()

    def round(self, rng: random.Random) -> None:
        from fake_cuda import FakeCuda

        self._driver.reset()
        with FakeCuda(self._driver) as gpu:
            super().round(rng)
        self.counts["replays"] += gpu.num_replays
        self.counts["launches"] += gpu.num_launches
        assert not gpu.faults, gpu.faults[0]

    def _options(self, rng: random.Random) -> dict[str, Any]:
        chunked, block_size, cache = rng.random() < 0.7, rng.choice([8, 16]), rng.choice(["auto", "auto", "fp8"])
        self._alone = self._of_dtype[cache]
        swap_space = rng.choice([0, 0.0001, 0.01])
        return {
            "device": "cuda",
            "dtype": "float32",
            "kv_cache_dtype": cache,
            "max_model_len": MAX_MODEL_LEN,
            "enable_sleep_mode": True,
            "sleep_dir": str(self.folder),
            "block_size": block_size,
            "num_gpu_blocks_override": MAX_MODEL_LEN // block_size + rng.choice([0, 2, 10]),
            "swap_space": swap_space,
            "enable_prefix_caching": rng.random() < 0.7,
            "enable_chunked_prefill": chunked,
            "max_num_batched_tokens": rng.choice([16, 40]) if chunked else MAX_MODEL_LEN,
            "max_num_seqs": rng.choice([4, 6]),
            "scheduling_policy": rng.choice(["fcfs", "priority"]),
            "preemption_mode": rng.choice(["auto", "recompute", "swap" if swap_space else "auto"]),
            "enforce_eager": rng.random() < 0.4,
            "async_scheduling": rng.random() < 0.8,
            "keep_backup": rng.random() < 0.7,
            "pin_backup": rng.random() < 0.3,
        }
