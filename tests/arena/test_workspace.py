"""The workspace: addresses that are given out again exactly when no tensor holds them any more."""

import random
import threading

import pytest
import torch
from kit.device.workspace_room import room_of

from lullm.arena.host import HostArena
from lullm.arena.workspace import Workspace


@pytest.fixture
def workspace():
    arena = HostArena("graphs", 1 << 21)
    yield Workspace(arena)
    arena.close()


def test_the_lowest_range_is_used_again_when_its_last_view_is_gone(workspace):
    first, second = (workspace.try_empty((4, 8), torch.float32) for _ in "ab")
    assert second.data_ptr() - first.data_ptr() == 128 and first.data_ptr() % 128 == 0
    assert first.shape == (4, 8) and first.is_contiguous()
    address, row = first.data_ptr(), first[1:].view(-1)
    del first
    assert workspace.try_empty((4,), torch.int64).data_ptr() != address, "a view holds it"
    del row
    assert workspace.try_empty((4,), torch.int64).data_ptr() == address


def test_neighbours_become_one_range_again(workspace):
    capacity = room_of(workspace)
    tensors = [workspace.try_empty((100,), torch.bfloat16) for _ in range(9)]
    rng = random.Random(0)
    while tensors:
        tensors.pop(rng.randrange(len(tensors)))
    whole = workspace.try_empty((capacity,), torch.uint8)
    assert whole is not None and room_of(workspace) == 0
    assert workspace.try_empty((1,), torch.uint8) is None
    del whole
    assert room_of(workspace) == capacity


def test_what_borrows_a_part_of_rows_has_their_strides(workspace):
    rows = workspace.try_empty((3, 8), torch.float32)
    rows.copy_(torch.arange(24.0).view(3, 8))
    borrowed = workspace.borrow(rows[:, :5])
    assert torch.equal(borrowed, torch.arange(24.0).view(3, 8)[:, :5])
    assert workspace.borrow(rows[:0]).shape == (0, 8)


def test_what_borrows_keeps_nothing(workspace):
    tensor = workspace.try_empty((3, 5), torch.float32).fill_(2.0)
    borrowed = workspace.borrow(tensor)
    address = tensor.data_ptr()
    assert borrowed.data_ptr() == address and borrowed.tolist() == tensor.tolist()
    del tensor
    workspace.try_empty((3, 5), torch.float32).fill_(7.0)
    assert borrowed.unique().tolist() == [7.0], "given out again"


def test_tensors_die_on_any_thread(workspace):
    capacity = room_of(workspace)
    held = [[workspace.try_empty((64,), torch.float32)] for _ in range(200)]
    threads = [
        threading.Thread(target=lambda part: [box.clear() for box in part], args=(held[i::4],)) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    some = [workspace.try_empty((64,), torch.float32) for _ in range(50)]
    for thread in threads:
        thread.join()
    del some
    assert room_of(workspace) == capacity
