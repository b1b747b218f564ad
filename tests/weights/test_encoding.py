"""MXFP4 beside transformers' own decoding; tensors that are joined, and those that do not belong together."""

import pytest
import torch
from kit.folder.mxfp4 import VALUES, quantize

from lullm.errors import ModelLoadError
from lullm.weights.encoding.joining import Join, Joining, whole_name
from lullm.weights.encoding.mxfp4 import MXFP4Tensor, encode_mxfp4

JOIN = Join(("_blocks", "_scales"), encode_mxfp4)


def random_parts(num_matrices=3, num_outputs=5, num_groups=2):
    """All bytes, and scales that bfloat16 can apply."""
    generator = torch.Generator().manual_seed(0)
    shape = (num_matrices, num_outputs, num_groups)
    blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(100, 150, shape, generator=generator, dtype=torch.uint8)


def test_as_transformers():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = random_parts()
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    encoded = MXFP4Tensor("x", (blocks, scales))
    assert encoded.shape == expected.shape == (3, 64, 5)
    assert encoded.nbytes == expected.bfloat16().nbytes
    assert torch.equal(encoded.decode().float(), expected)
    pieces = [piece.decode() for piece in encoded.split(2)]
    assert [len(piece) for piece in pieces] == [2, 1] and torch.equal(torch.cat(pieces).float(), expected)


def test_every_number_and_scale():
    """Each of the 16 numbers with each of the 255 scales: what the format says."""
    low = torch.arange(16, dtype=torch.uint8)
    blocks, scales = low.expand(1, 255, 1, 16), torch.arange(255, dtype=torch.uint8).view(1, 255, 1)
    found = MXFP4Tensor("x", (blocks, scales)).decode()[0].T.double()  # [255, 32]
    numbers = torch.cat((VALUES, -VALUES)).double()
    exact = numbers * 2.0 ** (torch.arange(255).double() - 127).unsqueeze(1)
    assert torch.equal(found[:, ::2], exact.bfloat16().double())
    assert not found[:, 1::2].any(), "the high bits"


def test_what_can_be_stored_is_stored():
    """A check of the tests' own quantizing."""
    numbers = torch.cat((VALUES, -VALUES)).repeat(2)[torch.randperm(32, generator=torch.Generator().manual_seed(0))]
    weights = torch.stack((numbers, numbers * 0.25, -numbers * 8)).T[None]  # [1, 32, 3]
    assert torch.equal(MXFP4Tensor("x", quantize(weights)).decode().float(), weights)


def test_a_scale_that_is_no_number_is_refused():
    blocks, scales = random_parts()
    scales[1, 2, 1] = 255
    encoded = MXFP4Tensor("a.weight", (blocks, scales))
    encoded.split(1)[0].decode()
    with pytest.raises(ModelLoadError, match="a.weight.*NaN"):
        encoded.decode()


@pytest.mark.parametrize(
    "change",
    [
        lambda blocks, scales: (blocks[:2], scales),
        lambda blocks, scales: (blocks[..., :8], scales),
        lambda blocks, scales: (blocks[0], scales[0]),
        lambda blocks, scales: (blocks, scales[..., :1]),
        lambda blocks, scales: (blocks.float(), scales),
        lambda blocks, scales: (blocks, scales.to(torch.int8)),
    ],
)
def test_parts_that_do_not_fit_are_refused(change):
    with pytest.raises(ModelLoadError, match="x: blocks .* are no MXFP4"):
        MXFP4Tensor("x", change(*random_parts()))


def test_joining():
    """In any order, beside tensors that stand alone; `c_scales` is promised, and `b` lacks a half."""
    names = ["a_scales", "b_blocks", "alone", "a_blocks", "c_scales"]
    joining = Joining((JOIN,), names)
    blocks, scales = random_parts()
    assert joining.add("a_scales", scales) is None
    with pytest.raises(ModelLoadError, match="missing tensor b_scales"):
        joining.add("b_blocks", blocks)
    alone = torch.ones(3)
    name, tensor = joining.add("alone", alone)
    assert name == "alone" and tensor is alone
    assert list(joining.incomplete()) == [("a", "a_blocks"), ("c", "c_scales")]
    name, encoded = joining.add("a_blocks", blocks)
    assert name == "a" and encoded.parts == (blocks, scales)
    assert joining.num_bytes("a") == blocks.nbytes + scales.nbytes
    assert list(joining.incomplete()) == [("c", "c_scales")]
    assert whole_name((JOIN,), "x.a_scales") == "x.a" and whole_name((), "a_scales") == "a_scales"


def test_a_part_under_the_whole_name():
    """FP8 stores its numbers under the name of the weight; a norm of that name is a tensor of its own."""
    join = Join((".weight", ".weight_scale"), lambda name, parts: (name, sorted(parts)), ".weight")
    joining = Joining((join,), ["norm.weight", "a.weight", "a.weight_scale"])
    norm = torch.ones(2)
    assert joining.add("norm.weight", norm) == ("norm.weight", norm)
    assert joining.add("a.weight", norm) is None
    assert joining.add("a.weight_scale", norm) == ("a.weight", ("a.weight", [".weight", ".weight_scale"]))
    assert whole_name((join,), "a.weight_scale") == "a.weight"
