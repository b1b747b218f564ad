"""Spoils the tensors of a safetensors file: other values, shapes and types, or none at all."""

import random
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

EXTREMES = (0, -1, 1, 127, -128, 2**31 - 1, -(2**31), 2**40)
DTYPES = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float8_e4m3fn, torch.float8_e5m2, torch.bool)  # fmt: skip


def spoil_tensor(rng: random.Random, path: Path, words: tuple[str, ...]) -> str:
    """Spoil one tensor whose name ends in one of `words`; what, for the report."""
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError):
        return "nothing: the file is spoilt already"
    names = sorted(name for name in tensors if name.endswith(words))
    if not names:
        return "nothing"
    name = rng.choice(names)
    told = _spoil(rng, tensors, name)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    return f"{name} {told}"


def _spoil(rng: random.Random, tensors: dict[str, Any], name: str) -> str:
    tensor = tensors[name]
    match rng.randrange(6):
        case 0:
            del tensors[name]
            return "dropped"
        case 1:
            tensors[name] = tensor.flatten() if rng.random() < 0.5 else tensor[None]
            return f"{list(tensors[name].shape)} instead of {list(tensor.shape)}"
        case 2 if tensor.dim():
            dim = rng.randrange(tensor.dim())
            tensors[name] = tensor.narrow(dim, 0, rng.randrange(tensor.shape[dim] + 1)).clone()
            return f"cut to {list(tensors[name].shape)}"
        case 3:
            dtype = rng.choice(DTYPES)
            tensors[name] = tensor.float().nan_to_num().to(dtype)
            return f"of {dtype} instead of {tensor.dtype}"
        case 4:
            other = rng.choice(sorted(tensors))
            tensors[name] = tensors[other].clone()
            return f"replaced by {other}"
    flat = tensor.flatten().clone().view(torch.uint8)
    if flat.numel() >= 8 and rng.random() < 0.5:
        value = torch.tensor([rng.choice(EXTREMES)]).view(torch.uint8)
        at = rng.randrange(flat.numel() // 8) * 8
        flat[at : at + 8] = value
    else:
        flat.random_(0, 256, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    tensors[name] = flat.view(tensor.dtype).view(tensor.shape)
    return "with other values"
