"""Damaged parts of quantized matrices, seeded: an error that names the matrix, or a matrix; no crash."""

import random

import pytest
import torch
from kit.folder.quantized import FORMATS

from lullm.errors import ModelLoadError

from .test_quantized_checkpoint import decoded, weight


def shorter(part, random_):
    dim = random_.randrange(part.dim()) if part.dim() else None
    return part if dim is None or not part.shape[dim] else part.narrow(dim, 0, random_.randrange(part.shape[dim]))


DAMAGES = [
    shorter,
    lambda part, random_: part.flatten(),
    lambda part, random_: part.unsqueeze(0),
    lambda part, random_: part.t() if part.dim() == 2 else part.reshape(-1, 1),
    lambda part, random_: part.to(random_.choice([torch.float32, torch.int8, torch.uint8, torch.int32, torch.int64])),
    lambda part, random_: part.float().fill_(random_.choice([float("nan"), float("inf"), -1.0])).to(part.dtype),
    lambda part, random_: torch.full_like(part.float(), random_.choice([0, 1, 200, 2**31])).to(part.dtype),
]


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_parts(name):
    """Whatever is wrong with the tensors, it is an error that names the matrix, or a matrix of the right shape."""
    config, encode = FORMATS[name]()
    whole, _ = encode(weight(shape=(64, 96)))
    num_refused = 0
    for number in range(60):
        random_, parts = random.Random(f"{name} {number}"), dict(whole)
        for _ in range(random_.choice([1, 1, 2])):
            part = random_.choice(sorted(parts))
            damaged = random_.choice(DAMAGES)(parts.pop(part), random_)
            parts |= {part: damaged} if random_.random() < 0.9 or len(parts) == 0 else {}
        try:
            found = decoded(config, parts)[1]
            if not isinstance(found, torch.Tensor):
                assert found.decode().shape == found.shape and found.shape.numel() <= 64 * 192
                for native in found.native_formats:
                    assert len(found.rows(native)) == len(found)
        except ModelLoadError as error:
            num_refused += 1
            assert "mlp.up_proj" in str(error)
        except Exception as error:
            error.add_note(f"case {number}")
            raise
    assert num_refused > 15
