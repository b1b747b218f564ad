"""Groups over shared memory: bits at every size, instruction set and delay; recordings; members that die or hang."""

import os
import random
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest
import torch
from kit.ready_process import ReadyPopen
from kit.worker.members import run_members, run_seats, sum_in_order
from torch import Tensor

from lullm.arena.host import HostArena
from lullm.arena.workspace import Workspace
from lullm.device.cpu import CpuDevice
from lullm.errors import UnsupportedError, WorkerLostError
from lullm.ops.cpu import native
from lullm.ops.cpu.library import absence, load_library
from lullm.types.parallel.placement import placements
from lullm.units import KIB, MIB
from lullm.worker.meeting import Meeting, open_seat

if absence() is not None:
    pytest.skip(f"no native ops: {absence()}", allow_module_level=True)

LIBRARY = load_library()
PART_BYTES = 256 * KIB


def run_tensor(size, work, timeout=30.0):
    return run_seats("memory", lambda seat: work(seat.tensor), tensor=size, timeout=timeout)


@pytest.fixture(params=LIBRARY.available_isas)
def isa(request):
    assert LIBRARY.handle.lullm_select_isa(request.param.encode())
    yield request.param
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_sums_of_many_sizes(isa, size, dtype):
    """Around vectors, around the size from which members share the sum out, and around whole parts."""
    item = dtype.itemsize
    counts = [1, 15, 16, 17, 33, 1000, 128 * KIB // item - 1, 128 * KIB // item + 5]
    counts += [PART_BYTES // item, PART_BYTES // item + 1, 2 * PART_BYTES // item + 77]
    generator = torch.Generator().manual_seed(5)
    parts = [torch.randn(size, count, generator=generator).to(dtype) for count in counts]
    for part in parts:
        part[0, 0] = -0.0
        part[-1, -1] = float("inf")

    def work(group):
        mine = [part[group.rank].clone() for part in parts]
        for x in mine:
            group.all_reduce_(x)
        return mine

    for found in run_tensor(size, work):
        for x, part in zip(found, parts, strict=True):
            assert torch.equal(x, sum_in_order(part)), x.numel()


def test_a_long_walk_with_delays():
    """Every operation in any order and size, members late in turns: nobody reads what is not there yet, or no more."""
    size, num_calls = 4, 200

    def tensor(call, member, shape):
        return torch.randn(shape, generator=torch.Generator().manual_seed(1000 * call + member))

    def work(group):
        plan, own = random.Random(3), random.Random(group.rank)
        for call in range(num_calls):
            kind = plan.choice(["sum", "gather", "send"])
            shape = plan.choice([(1, 1), (3, 64), (2, 70_001), (40, 3000)])
            source, to = plan.sample(range(size), 2)
            x = tensor(call, group.rank, shape)
            if own.random() < 0.05:
                time.sleep(own.choice([0.0, 0.0001, 0.001]))
            if kind == "sum":
                group.all_reduce_(x)
                assert torch.equal(x, sum_in_order(torch.stack([tensor(call, m, shape) for m in range(size)])))
            elif kind == "gather":
                expected = torch.cat([tensor(call, m, shape) for m in range(size)], dim=1)
                assert torch.equal(group.all_gather(x), expected)
            elif group.rank == source:
                group.send(x, to)
            elif group.rank == to:
                group.receive_(x, source)
                assert torch.equal(x, tensor(call, source, shape))

    run_tensor(size, work)


def test_rows_wider_than_a_buffer():
    def work(group):
        return group.all_gather(torch.arange(2 * 100_000.0).view(2, -1) + group.rank)

    parts = [torch.arange(2 * 100_000.0).view(2, -1) + rank for rank in range(2)]
    assert all(torch.equal(found, torch.cat(parts, dim=1)) for found in run_tensor(2, work))


def test_a_sender_may_be_ahead():
    def work(seat):
        group = seat.pipeline
        if group.rank == 0:
            for number in range(8):
                group.send(torch.full((10,), float(number)), 1)
            return group.all_reduce_(torch.zeros(1))  # all are sent, and none is received yet
        group.all_reduce_(torch.zeros(1))
        x = torch.empty(10)
        found = []
        for _ in range(8):
            group.receive_(x, 0)
            found.append(x[9].item())
        return found

    assert run_seats("memory", work, pipeline=2)[1] == list(range(8))


class Sums(NamedTuple):
    total: Tensor
    gathered: Tensor


def recorded(group, x):
    """`replay()` for a computation with every call of a pair."""
    arena = HostArena("graphs", MIB)
    scale = torch.full((1,), 2.0)

    def compute():
        total = native.activate(x, "relu")
        group.all_reduce_(total)
        native.scale_by_(total, scale)
        if group.rank == 0:
            group.send(total, 1)
        else:
            group.receive_(total, 0)
        return Sums(total, group.all_gather(total))

    captured = CpuDevice().capture(compute, Workspace(arena))
    assert captured.refusal is None
    return arena, captured


def test_replays_are_calls():
    def work(group):
        x = torch.zeros(2, 3)
        arena, captured = recorded(group, x)
        for number in (1.0, 2.0):
            x.fill_(number * (group.rank + 1))
            captured.replay()
            assert captured.output.total.flatten().tolist() == [6 * number] * 6
            assert captured.output.gathered.shape == (2, 6)
        arena.close()

    run_tensor(2, work)


def test_a_replay_with_a_lost_member_is_an_error():
    def work(group):
        arena, captured = recorded(group, torch.ones(2, 3))
        if group.rank == 0:
            return group.close()
        with pytest.raises(WorkerLostError, match="worker 0 of its group has left"):
            captured.replay()
        arena.close()

    run_tensor(2, work)


CHILD = """
import sys, time, torch
from lullm.types.parallel.placement import placements
from lullm.types.parallel.rendezvous import LocalFile
from lullm.worker.meeting import open_seat
seat = open_seat(placements(2, 1)[1], LocalFile(int(sys.argv[1]), "memory", 30.0))
seat.tensor.all_reduce_(torch.ones(3))
print("ready", flush=True)
time.sleep(60)
"""


def start_peer(meeting):
    descriptor = meeting.rendezvous.descriptor
    command = [sys.executable, "-c", CHILD, str(descriptor)]
    return ReadyPopen(command, pass_fds=[descriptor], stdout=subprocess.PIPE, text=True)


def test_the_death_of_a_process_is_noticed_at_once():
    with Meeting.on_this_host(transport="memory") as meeting:
        child = start_peer(meeting)
        seat = open_seat(placements(2, 1)[0], meeting.rendezvous)
        x = torch.ones(3)
        seat.tensor.all_reduce_(x)
        assert x.tolist() == [2, 2, 2]
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(WorkerLostError, match="group stage 0: worker 1 of its group has died"):
            seat.tensor.all_reduce_(x)
        assert time.monotonic() - started < 5
        with pytest.raises(WorkerLostError, match="has died"):
            seat.tensor.all_gather(torch.ones(1, 1))
        seat.close()
        child.wait()
        child.stdout.close()


def test_a_loss_in_one_group_ends_the_waiting_in_all():

    def work(seat):
        if seat.placement.rank == 0:
            return None  # and leaves its stage, where worker 1 waits for it
        group = seat.tensor if seat.placement.rank == 1 else seat.pipeline
        if seat.placement.rank != 2:
            with pytest.raises(WorkerLostError, match="has left|another group"):
                group.all_reduce_(torch.ones(1))
        return None

    assert run_seats("memory", work, tensor=2, pipeline=2) == [None] * 4


def test_a_member_that_hangs_is_an_error_in_time():
    def work(group):
        if group.rank == 1:
            return time.sleep(0.6)
        with pytest.raises(WorkerLostError, match="worker 1 of its group has not come to it in time"):
            group.all_reduce_(torch.ones(2))

    run_tensor(2, work, timeout=0.3)


def test_a_place_is_taken_once():
    with Meeting.on_this_host(transport="memory") as meeting:

        def claim(seat):
            with pytest.raises(UnsupportedError, match="group stage 0: the place of worker 1 is taken"):
                open_seat(placements(2, 1)[1], meeting.rendezvous)
            seat.tensor.all_reduce_(torch.ones(1))

        run_members(2, lambda rank: open_seat(placements(2, 1)[rank], meeting.rendezvous), claim)


def test_room_is_taken_by_what_is_used():
    """The file has room for the longest messages of every pair; a page of it costs nothing before it is written."""
    with Meeting.on_this_host(transport="memory") as meeting:

        def work(seat):
            seat.tensor.all_reduce_(torch.ones(4))

        run_members(4, lambda rank: open_seat(placements(4, 1)[rank], meeting.rendezvous), work)
        status = os.fstat(meeting.rendezvous.descriptor)
        assert status.st_size > 10 * MIB and status.st_blocks * 512 < 200 * KIB
