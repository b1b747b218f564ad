"""Regions: what torch's factories make inside lies in the arena, is what torch would have made, and nothing else."""

import threading

import pytest
import torch
from torch import nn

from lullm.arena.arena import Arena
from lullm.arena.host import HostArena
from lullm.arena.region import Region
from lullm.errors import CacheSizeError, LullmError
from lullm.units import MIB


@pytest.fixture
def arena():
    return HostArena("weights", 4 * MIB)


def lies_in(tensor, arena):
    start = arena.base_address
    return start <= tensor.data_ptr() and tensor.data_ptr() + tensor.nbytes <= start + arena.capacity_bytes


SOURCE = torch.arange(6.0).view(2, 3)
IMAGES = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
META = torch.empty(3, device="meta")
SPARE = torch.empty(3)
FACTORIES = {
    "zeros": lambda: torch.zeros(2, 3),
    "zeros dtype": lambda: torch.zeros((4,), dtype=torch.bfloat16),
    "ones": lambda: torch.ones(5, dtype=torch.int8),
    "full": lambda: torch.full((2, 2), 7),
    "zeros_like": lambda: torch.zeros_like(SOURCE, dtype=torch.float16),
    "ones_like": lambda: torch.ones_like(SOURCE),
    "full_like": lambda: torch.full_like(SOURCE, 3.5),
    "new_zeros": lambda: SOURCE.new_zeros(3),
    "new_ones": lambda: SOURCE.new_ones((3,), dtype=torch.int64),
    "new_full": lambda: SOURCE.new_full((2,), 4.0),
    "new_tensor": lambda: SOURCE.new_tensor([1.0, 2.0]),
    "tensor": lambda: torch.tensor([[1, 2], [3, 4]]),
    "tensor device": lambda: torch.tensor(1.5, device="cpu"),
    "scalar_tensor": lambda: torch.scalar_tensor(3),
    "arange": lambda: torch.arange(1, 9, 2),
    "linspace": lambda: torch.linspace(0, 1, 5),
    "eye": lambda: torch.eye(3),
    "tril_indices": lambda: torch.tril_indices(3, 3),
    "rand": lambda: torch.rand(3, generator=torch.Generator().manual_seed(1)),
    "randn": lambda: torch.randn(2, 2, generator=torch.Generator().manual_seed(1)),
    "randint": lambda: torch.randint(0, 9, (4,), generator=torch.Generator().manual_seed(1)),
    "requires_grad": lambda: torch.ones(2, requires_grad=True),
    "channels_last": lambda: torch.zeros_like(IMAGES),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_make_the_same_in_the_arena(arena, name):
    expected = FACTORIES[name]()
    with arena.region():
        made = FACTORIES[name]()
    assert torch.equal(made, expected) and made.dtype == expected.dtype and made.stride() == expected.stride()
    assert made.requires_grad == expected.requires_grad and made.is_leaf
    assert lies_in(made, arena) and not lies_in(expected, arena)
    assert arena.used_bytes == made.nbytes
    outside = FACTORIES[name]()
    assert not lies_in(outside, arena)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, 3, dtype=torch.float64),
        lambda: torch.empty_like(SOURCE),
        lambda: SOURCE.new_empty(4),
        lambda: torch.empty_strided((2, 3), (1, 2)),
        lambda: torch.empty_permuted((2, 3), (1, 0)),
        lambda: SOURCE.new_empty_strided((2, 2), (4, 1)),
        lambda: torch.empty(1, 2, 3, 4, memory_format=torch.channels_last),
    ],
)
def test_empty_factories(arena, make):
    expected = make()
    with arena.region():
        made = make()
    assert (made.shape, made.stride(), made.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert lies_in(made, arena) and made.fill_(1).sum() == made.numel()


def test_modules_are_built_in_the_arena(arena):
    torch.manual_seed(0)
    expected = nn.Sequential(nn.Linear(20, 30), nn.LayerNorm(30), nn.Embedding(10, 30))
    torch.manual_seed(0)
    with arena.region():
        model = nn.Sequential(nn.Linear(20, 30), nn.LayerNorm(30), nn.Embedding(10, 30))
    for (name, made), wanted in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert isinstance(made, nn.Parameter) and lies_in(made, arena), name
        assert torch.equal(made, wanted) and made.requires_grad
    x = torch.randn(4, 20)
    assert torch.equal(model[:2](x), expected[:2](x))
    model[:2](x).sum().backward()
    addresses = [p.data_ptr() for p in model.parameters()]
    arena.release()
    assert not any(p.any() for p in model.parameters()) and [p.data_ptr() for p in model.parameters()] == addresses
    with torch.no_grad():
        for made, wanted in zip(model.parameters(), expected.parameters(), strict=True):
            made.copy_(wanted)
    assert torch.equal(model[:2](x), expected[:2](x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(3, device="meta"),
        lambda: torch.zeros_like(META),
        lambda: torch.zeros(3, out=SPARE),
        lambda: torch.empty((2, 2), layout=torch.sparse_coo),
        lambda: SOURCE + 1,
        lambda: SOURCE.clone(),
        lambda: SOURCE.to(torch.float64),
        lambda: torch.zeros(0, 4),
    ],
)
def test_what_is_left_to_torch(arena, make):
    with arena.region():
        make()
    assert arena.used_bytes == 0


def test_default_devices_count(arena):
    with torch.device("meta"), arena.region():
        assert torch.empty(3).is_meta
        assert lies_in(torch.empty(3, device="cpu"), arena)
    with arena.region(), torch.device("meta"):
        assert torch.empty(3).is_meta
    with arena.region(), torch.device("cpu"):
        assert lies_in(torch.empty(3), arena)
    with arena.region(), torch.device("meta"):
        assert nn.Linear(2, 2).weight.is_meta
    assert arena.used_bytes == 128 + 12


def test_the_index_of_a_device_counts(arena, monkeypatch):
    class Second:
        """Stands for a second accelerator: 'meta:1' can be had anywhere."""

        device = torch.device("meta", 1)
        served = 0

        def empty(self, shape, dtype):
            self.served += 1
            return torch.empty(shape, dtype=dtype, device=self.device)

    second = Second()
    with Region(second):
        for device, current, expected in (("meta:1", 0, 1), ("meta:0", 1, 0), ("meta", 1, 1), ("meta", 0, 0)):
            monkeypatch.setattr(torch.accelerator, "current_device_index", lambda current=current: current)
            second.served = 0
            torch.ones(3, device=device)
            assert second.served == expected, (device, current)
    with arena.region():
        assert lies_in(torch.ones(3, device="cpu:0"), arena)  # there is one host


def test_other_threads_are_left_alone(arena):
    made = []
    with arena.region():
        thread = threading.Thread(target=lambda: made.append(torch.zeros(8)))
        thread.start()
        thread.join()
        made.append(torch.zeros(8))
    assert [lies_in(tensor, arena) for tensor in made] == [False, True]


def test_regions_nest_and_end_with_errors(arena):
    inner = HostArena("lora", 1)
    with arena.region():
        with inner.region():
            assert lies_in(torch.ones(2), inner)
        assert lies_in(torch.ones(2), arena)
        with pytest.raises(ZeroDivisionError), inner.region():
            raise ZeroDivisionError
        assert lies_in(torch.ones(2), arena)
        assert lies_in(arena.empty((2,), torch.int8), arena)  # the arena itself works as ever inside
    assert not lies_in(torch.ones(2), arena)


def test_what_does_not_fit_is_refused(arena):
    with arena.region():
        with pytest.raises(CacheSizeError, match="the arena 'weights' is full: 8.0 MiB asked for"):
            nn.Linear(1024, 2048)
        assert lies_in(torch.ones(2), arena)
    arena.close()
    with arena.region(), pytest.raises(LullmError, match="'weights' is closed"):
        torch.empty(3)


def test_on_a_device(fake):
    arena = Arena(fake.build("cuda"), "weights", 1)
    with arena.region():
        weight = nn.Linear(8, 8).weight
        assert lies_in(weight, arena)
        arena.release()
        with pytest.raises(LullmError, match="map\\(\\) it first"):
            torch.zeros(3)
