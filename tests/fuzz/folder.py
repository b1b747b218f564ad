"""Model folders with mutated files: each loads, or fails with an error of lullm's own, soon and in little memory."""

import contextlib
import copy
import json
import os
import random
import select
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from kit.folder import quantized
from kit.folder.checkpoint import write_checkpoint

from .target import Target
from .tensors import spoil_tensor

LIMIT_S = 60.0
LIMIT_BYTES = 400 << 20
EVIL: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 10**9, 10**18, 10**400, -(2**63), 0.0, 0.5, -1.5, 1e30, 1e308, float("nan"),
    float("inf"), "", "no", "2048", "float16", "x" * 3000, "\ud800", [], {}, [0], [[]], [None] * 3, ["a", "b"], [-1],
    {"a": 1}, {"rope_type": "yarn"}, {"rope_type": "linear", "factor": 0}, list(range(5000)),
)  # fmt: skip
ENCODED = ("w8a8", "w4a16 asymmetric", "awq", "gptq act-order", "fp8 blocks", "w4a16 channel")
PARTS = ("proj.weight", "_packed", "_scale", "_shape", "_zero_point", "qweight", "qzeros", "scales", "g_idx")
JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


class FolderTarget(Target):
    """A round is one folder. A child process opens it, which is replaced when it hangs or dies."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._pristine = write_checkpoint(folder / "pristine", "qwen3", num_hidden_layers=1)
        self._quantized: dict[str, Path] = {}
        self._child: subprocess.Popen[str] | None = None

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def round(self, rng: random.Random) -> None:
        folder = self.folder / "mutated"
        shutil.rmtree(folder, ignore_errors=True)
        source = self._pristine if rng.random() < 0.5 else self._encoded(rng.choice(ENCODED))
        shutil.copytree(source, folder)
        told = [source.name, *(self._mutate(rng, folder) for _ in range(rng.choice([1, 1, 1, 2, 3])))]
        found = self._opened(folder)
        assert found is not None, f"{told}: the process hung or died"
        assert found["is_known"], f"{told}: {found['message']}"
        assert found["bytes"] < LIMIT_BYTES, f"{told}: {found['bytes'] >> 20} MiB, {found['message']}"
        self.counts["loaded" if found["message"] == "loaded" else "refused"] += 1

    def _encoded(self, name: str) -> Path:
        """A quantized copy of the model."""
        if name not in self._quantized:
            folder = self.folder / name.replace(" ", "-")
            quantized.write(self._pristine, folder, self.folder / "dense", quantized.FORMATS[name])
            self._quantized[name] = folder
        return self._quantized[name]

    def _opened(self, folder: Path) -> dict[str, Any] | None:
        if self._child is None:
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
            self._child = subprocess.Popen(
                [sys.executable, "-m", "fuzz.folder_child"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
            )  # fmt: skip
        assert self._child.stdin is not None and self._child.stdout is not None
        print(folder, file=self._child.stdin, flush=True)
        if select.select([self._child.stdout], [], [], LIMIT_S)[0] and (line := self._child.stdout.readline()):
            found: dict[str, Any] = json.loads(line)
            return found
        self.close()
        return None

    def _mutate(self, rng: random.Random, folder: Path) -> str:
        """Spoil something; what, for the report."""
        if rng.random() < 0.3:
            return _spoil_header(rng, folder / "model.safetensors")
        if rng.random() < 0.4:
            return spoil_tensor(rng, folder / "model.safetensors", PARTS)
        path = folder / rng.choice(JSON_FILES)
        if not path.exists():
            path.write_text("{}")
        if rng.random() < 0.15:
            return _spoil_bytes(rng, path)
        content = {}
        with contextlib.suppress(ValueError):  # spoilt before
            content = json.loads(path.read_text(errors="replace"))
        told = _spoil_json(rng, content)
        path.write_text(json.dumps(content), errors="replace")
        return f"{path.name} {told}"


def _spoil_json(rng: random.Random, content: Any) -> str:
    """Replace or drop a value at a random place."""
    here, place = content, ""
    while isinstance(here, (dict, list)) and here:
        key = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
        place += f".{key}"
        if isinstance(here[key], (dict, list)) and here[key] and rng.random() < 0.7:
            here = here[key]
            continue
        if rng.random() < 0.15:
            del here[key]
            return f"{place} dropped"
        here[key] = copy.deepcopy(rng.choice(EVIL))
        return f"{place} = {str(here[key])[:40]!r}"
    return "nothing"


def _spoil_bytes(rng: random.Random, path: Path) -> str:
    """Cut a file off, or replace some of its bytes."""
    data = bytearray(path.read_bytes())
    if not data or rng.random() < 0.4:
        path.write_bytes(bytes(data[: rng.randrange(len(data) + 1)]))
        return f"{path.name} cut"
    for _ in range(rng.randrange(1, 5)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(bytes(data))
    return f"{path.name} with other bytes"


def _spoil_header(rng: random.Random, path: Path) -> str:
    """Another header of a safetensors file: its length, its JSON, or its bytes."""
    data = path.read_bytes()
    if len(data) < 8 or rng.random() < 0.3:
        return _spoil_bytes(rng, path)
    (length,) = struct.unpack("<Q", data[:8])
    if rng.random() < 0.2:
        length = rng.choice([0, 1, length - 1, length + 1, len(data), 2**40, 2**63, 2**64 - 1])
        path.write_bytes(struct.pack("<Q", length) + data[8:])
        return f"header length {length}"
    try:
        header = json.loads(data[8 : 8 + length])
    except ValueError:
        return _spoil_bytes(rng, path)
    told = _spoil_json(rng, header)
    raw = json.dumps(header).encode(errors="replace")
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data[8 + length :])
    return f"header {told}"
