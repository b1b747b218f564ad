"""Adapters of a layer: every version against the reference, a row's bits in any batch, and in a recording."""

import pytest
import torch

from lullm.arena.host import HostArena
from lullm.arena.workspace import Workspace
from lullm.ops.cpu import native, native_lora
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.cpu.recording import Recording
from lullm.ops.lora import masked, reference
from lullm.ops.lora.weights import LoraWeights
from lullm.units import MIB

LIBRARY = load_library()
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
SHAPES = [(1, 64, (48,), 8), (8, 96, (64, 32, 32), 16), (37, 130, (100, 20), 5), (90, 256, (320, 64, 64), 16)]
NEEDS_NATIVE = pytest.mark.skipif(absence() is not None, reason=f"no native ops: {absence()}")


@pytest.fixture(params=LIBRARY.available_isas if LIBRARY else ())
def isa(request):
    assert LIBRARY.handle.lullm_select_isa(request.param.encode())
    yield request.param
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())


def case(dtype, num_rows, num_inputs, parts, max_rank, num_places=3):
    """(rows of a layer's results, its inputs, adapters of different ranks)."""
    generator = torch.Generator().manual_seed(num_rows)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    a = normal(num_places, len(parts), max_rank, num_inputs) / num_inputs**0.5
    b = normal(num_places, max_rank, sum(parts))
    ranks = torch.randint(0, max_rank + 1, (num_places, len(parts)), generator=generator)
    ranks[0] = max_rank
    for place in range(num_places):
        for part, columns in enumerate(b[place].split(parts, dim=1)):
            a[place, part, ranks[place, part] :] = 0
            columns[ranks[place, part] :] = 0
    rows = torch.randint(-1, num_places, (num_rows + 3,), generator=generator)
    lora = LoraWeights(a.flatten(1, 2).to(dtype), b.to(dtype), ranks, rows, parts)
    wide = normal(num_rows, sum(parts) + 32).to(dtype)
    return wide[:, : sum(parts)], normal(num_rows, num_inputs).to(dtype), lora


def added(op, y, x, lora):
    y = y.clone() if y.is_contiguous() else torch.cat((y, y), dim=1)[:, : y.shape[1]]
    op(y, x, lora)
    return y


@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_equals_the_reference(dtype, shape):
    y, x, lora = case(dtype, *shape)
    expected = added(reference.add_lora_, y, x, lora)
    found = added(masked.add_lora_, y, x, lora)
    step = 1e-5 if dtype == torch.float32 else 2**-6
    torch.testing.assert_close(found.float(), expected.float(), rtol=step, atol=4 * step)


@NEEDS_NATIVE
@DTYPES
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_native_equals_the_reference(isa, dtype, shape, num_threads):
    native.set_num_threads(num_threads)
    y, x, lora = case(dtype, *shape)
    expected = added(reference.add_lora_, y, x, lora)
    found = added(native_lora.add_lora_, y, x, lora)
    step = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(found.float(), expected.float(), rtol=step, atol=1e-5)
    for row in (0, shape[0] // 2, shape[0] - 1):  # a row alone has the bits that it has among others
        own = LoraWeights(lora.a, lora.b, lora.ranks, lora.rows[row : row + 1].clone(), lora.part_sizes)
        alone = added(native_lora.add_lora_, y[row : row + 1].clone(), x[row : row + 1].clone(), own)
        assert torch.equal(alone[0], found[row])


@NEEDS_NATIVE
@DTYPES
def test_a_replay_reads_the_rows_of_now(dtype):
    y, x, lora = case(dtype, *SHAPES[1])
    place, arena = y.clone(), HostArena("graphs", MIB)
    lora.rows.fill_(-1)
    with Recording(Workspace(arena)) as recording:
        native_lora.add_lora_(place, x, lora)
    assert recording.refusal is None and torch.equal(place, y)
    lora.rows.copy_(torch.arange(len(lora.rows)) % 3)
    expected = added(native_lora.add_lora_, y, x, lora)
    assert recording.replay() and torch.equal(place, expected) and not torch.equal(place, y)
    arena.close()


def test_other_types_are_torchs():
    y, x, lora = case(torch.float16, *SHAPES[1])
    assert torch.equal(added(native_lora.add_lora_, y, x, lora), added(masked.add_lora_, y, x, lora))
