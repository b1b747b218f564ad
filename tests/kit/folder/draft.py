"""Draft models for a checkpoint: folders whose guesses are often right, because their weights are alike."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def write_draft(
    source: Path, folder: Path, num_layers: int | None = None, noise: float = 0.0, **config: object
) -> Path:
    """The model of `source` with its first `num_layers` layers only (None: all), and `noise` in its weights.

    `config`: other values for its config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix == ".json":
            shutil.copy(path, folder)
    known = json.loads((source / "config.json").read_text())
    num_layers = known["num_hidden_layers"] if num_layers is None else num_layers
    cut = {name: known[name][:num_layers] for name in ("layer_types",) if known.get(name)}
    (folder / "config.json").write_text(json.dumps({**known, "num_hidden_layers": num_layers, **cut, **config}))
    torch.manual_seed(0)
    weights = load_file(source / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if _layer_of(name) < num_layers}
    for name, tensor in kept.items() if noise else ():
        kept[name] = tensor + (noise * tensor.float().std() * torch.randn(tensor.shape)).to(tensor.dtype)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def _layer_of(name: str) -> int:
    """The number of the layer whose tensor it is; -1: of no layer."""
    parts = name.split(".")
    return int(parts[parts.index("layers") + 1]) if "layers" in parts else -1
