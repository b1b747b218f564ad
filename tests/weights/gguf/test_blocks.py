"""Every format's numbers, against the `gguf` library's."""

import gguf
import numpy as np
import pytest
import torch
from kit.folder.gguf_files import FORMATS, random_blocks

from lullm.config.gguf.format import FORMATS as BLOCK_FORMATS
from lullm.ops.quantized.narrow import MAGNITUDES
from lullm.weights.gguf.blocks import decode_rows, narrow_blocks, take_apart

REACH = {
    FORMATS.Q8_0: (-128, 127), FORMATS.Q4_0: (-8, 7), FORMATS.Q5_0: (-16, 15), FORMATS.IQ4_NL: (-127, 113),
    FORMATS.Q2_K: (0, 3), FORMATS.Q3_K: (-4, 3), FORMATS.Q4_K: (0, 15), FORMATS.Q5_K: (0, 31), FORMATS.Q6_K: (-32, 31),
    FORMATS.IQ4_XS: (-127, 113), FORMATS.Q4_1: (0, 15), FORMATS.Q5_1: (0, 31),
}  # fmt: skip
"""Of digits."""
QUANTIZED = [*REACH]


def test_sizes():
    for number, block in BLOCK_FORMATS.items():
        assert (block.num_values, block.num_bytes) == gguf.GGML_QUANT_SIZES[FORMATS(number)]
        assert block.name == FORMATS(number).name


@pytest.mark.parametrize("kind", [*QUANTIZED, FORMATS.MXFP4], ids=lambda kind: kind.name)
def test_any_bytes(kind):
    """All bits of random blocks, with float16 factors that are finite."""
    if kind == FORMATS.MXFP4:
        raw = np.random.default_rng(0).integers(0, 256, (7, 3 * 17), dtype=np.uint8)
        raw[:, ::17] = raw[:, ::17].clip(0, 250)
        raw[0, 0], raw[1, 0], raw[2, 0] = 0, 1, 250
    else:
        raw = random_blocks((7, 768), kind)
    expected = torch.from_numpy(gguf.quants.dequantize(raw, kind))
    found = decode_rows(BLOCK_FORMATS[kind], torch.from_numpy(raw))
    assert expected.std() > 0
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_narrow_floats_are_taken_apart():
    """In the order and with the scales of the native format: numbers are e2m1 times 2 to the power of e - 127."""
    raw = np.random.default_rng(0).integers(0, 256, (7, 3 * 17), dtype=np.uint8)
    raw[:, ::17] = raw[:, ::17].clip(2, 240)
    raw = torch.from_numpy(raw)
    blocks, exponents = narrow_blocks(raw)
    digits = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2).int()  # [n, G, 32]
    table = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)])
    found = torch.ldexp(table[digits], exponents.int().unsqueeze(-1) - 127).flatten(1)
    torch.testing.assert_close(found, decode_rows(BLOCK_FORMATS[FORMATS.MXFP4], raw), atol=0, rtol=0)


@pytest.mark.parametrize("kind", [FORMATS.F32, FORMATS.F16, FORMATS.BF16], ids=lambda kind: kind.name)
def test_numbers_of_a_type(kind):
    values = torch.randn(5, 6)
    raw = gguf.quants.quantize(values.numpy(), kind)
    expected = torch.from_numpy(np.array(gguf.quants.dequantize(raw, kind)))
    found = decode_rows(BLOCK_FORMATS[kind], torch.from_numpy(np.ascontiguousarray(raw).view(np.uint8).reshape(5, -1)))
    torch.testing.assert_close(found.float(), expected, atol=0, rtol=0)


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_parts_have_small_digits(kind):
    """What the native kernels count on."""
    blocks = take_apart(BLOCK_FORMATS[kind], torch.from_numpy(random_blocks((7, 768), kind)))
    assert (int(blocks.digits.min()), int(blocks.digits.max())) == REACH[kind]
    assert blocks.codes is None or blocks.codes.dtype == torch.int8
    if blocks.codes is not None:
        products = blocks.digits.int().unflatten(1, (blocks.codes.shape[1], -1)) * blocks.codes.int().unsqueeze(-1)
        assert products.abs().max() <= 4096
