"""Toy sizes of the scripts that measure a GPU, for a fake one whose kernels are interpreted: seconds instead of hours.

`install` lets every import of such a script give it its toys. What it does, and in which order, stays.
"""

import dataclasses
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Any

MIB = 1 << 20
PATIENCE = 30
"""Limits are so many times as long: the interpreter computes, and two cores share the machine with other tests."""

SHAPE = {"vocab_size": 320, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128,
         "torch_dtype": "float32"}  # fmt: skip
SIZES = {
    "copy_bytes": 4096, "host_bytes": 1024, "product": 8, "decodes": ((1, 40), (2, 16)), "prefills": ((8, 8), (4, 24)),
    "text_lens": (3, 5),
    "rows": (1,), "blocks": (1,), "draws": (1,), "num_layers": 1, "max_model_len": 64, "output_len": 2, "prompt_len": 3,
    "sleep_seqs": 1, "kv_bytes": MIB, "num_requests": 2, "mix_lens": (2, 4), "max_num_batched_tokens": 16,
    "peer_options": {"page_size": 16, "num_blocks": 8, "max_batch_tokens": 16},  # else it takes 15 GB of the host
}  # fmt: skip
TESTS = {
    "kernel-tests": ("tests/ops/triton/test_elementwise.py",),
    "engine-tests": ("tests/gpu/test_engine.py::test_greedy_tokens_equal_transformers",),
    "sleep-tests": ("tests/gpu/test_sleep.py::test_unchanged_weights_are_not_copied_again",),
}
"""All of the tests for a GPU take half an hour: `pytest -p kit.device.rehearsal -m gpu tests/gpu`."""


def _kernels(module: Any) -> dict[str, Any]:
    shapes = {name: {**shape, **SHAPE} for name, shape in module.GPU_SHAPES.items()}
    sizes = dataclasses.replace(module.SIZES, **SIZES)
    return {"SIZES": sizes, "GPU_SHAPES": shapes, "DECODE_GOAL": (2, 16), "PREFILL_GOAL": (8, 8), "REPEAT": 1}


def _contact(module: Any) -> dict[str, Any]:
    sizes = {"arena_bytes": 4 * MIB, "chunk_bytes": (2 * MIB,), "mapped_bytes": 8 * MIB, "pinned_bytes": (2 * MIB,)}
    return {"SIZES": dataclasses.replace(module.SIZES, **sizes, block_dims=(16, 8, 512))}


def _correctness(module: Any) -> dict[str, Any]:
    """Of each kind one: the interpreter has them all in tests/ops/triton."""
    groups, wanted = module.all_checks(is_small=True), ((0, 1), (1, 1), (2, 0))
    return {"all_checks": lambda: [[groups[group][place]] for group, place in wanted]}


def _engine(module: Any) -> dict[str, Any]:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "num_gpu_blocks_override": 40}
    few = module.FEW_BLOCKS | {"num_gpu_blocks_override": 6, "max_model_len": 64}
    return {"OPTIONS": options, "FEW_BLOCKS": few, "CHUNK": 8, "NUM_TOKENS": 5, "PROMPT_LENS": (15, 3, 30, 16)}


def _sanitized(module: Any) -> dict[str, Any]:
    from gpu_parts.case.draw import DrawCase
    from gpu_parts.case.rows import row_cases

    rows = lambda device: row_cases(device, 32)  # noqa: E731
    return {"CASES": [module.CASES[2].small()], "row_cases": rows, "DRAW": DrawCase("flat", 600, 1)}


def _rows(module: Any) -> dict[str, Any]:
    def patient(row: Any) -> Any:
        return dataclasses.replace(row, limit_s=PATIENCE * row.limit_s, tests=TESTS.get(row.name, row.tests))

    first, rest = (tuple(map(patient, rows)) for rows in (module.FIRST, module.REST))
    return {"FIRST": first, "REST": rest, "ROWS": {row.name: row for row in (*first, *rest)}}


TOYS = {
    "gpu": lambda module: {"CASES": {name: PATIENCE * limit_s for name, limit_s in module.CASES.items()}},
    "gpu_kernels": _kernels,
    "gpu_tiles": lambda module: {
        "STEPS": {"decode": ((1, 1, 20),), "prefill": ((1, 2, 20),)},
        "FIRST": {"decode": ((32, 1, 1, 16),), "prefill": ((32, 16, 1, 1),)},
        "REST_S": 1.0,
    },
    "gpu_parts.contact": _contact,
    "gpu_parts.correctness": _correctness,
    "gpu_parts.engine": _engine,
    "gpu_parts.host": lambda module: {
        "NUM_CALLS": 1,
        "LOOPS": 10,
        "SIZE": 16,
        "ROWS": 3,
        "NUM_STEPS": 1,
        "DECODES": (1, 2),
        "MIXED_TOKENS": 12,
    },
    "gpu_parts.products": lambda module: {"ROWS": (1, 2), "MAX_WEIGHTS": 1, "MAX_TILES": 0},
    "gpu_parts.profile": lambda module: {"ROWS": (1, 2), "NUM_STEPS": 2, "CONTEXT_LEN": 5, "MIXED_TOKENS": 12},
    "gpu_parts.rest.sanitized": _sanitized,
    "gpu_parts.row": _rows,
    "gpu_parts.swap": lambda module: {"NUM_LAYERS": 1, "NUM_BLOCKS": 2, "PRODUCT": 8, "ROUNDS": 1},
}
"""By the name of a script: (module) -> what its toys are."""


class _Shrunk(importlib.machinery.SourceFileLoader):
    """Executes a script, and puts its toys into it."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for name, toy in TOYS[module.__name__](module).items():
            assert hasattr(module, name), f"{module.__name__} has no {name}"
            setattr(module, name, toy)


class Finder:
    """Finds the scripts that have toys; for `sys.meta_path`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in TOYS else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Shrunk(name, spec.origin)
        return spec


class Lacking:
    """Stands for a Python without these modules; for `sys.meta_path`."""

    def __init__(self, names: str):
        self._names = names.split(",")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {name!r} (left out of the rehearsal)", name=name)


def install() -> None:
    """Toy sizes, and without the modules that REHEARSAL_LACKS names."""
    sys.meta_path[:0] = [Lacking(os.environ.get("REHEARSAL_LACKS", "")), Finder]
