"""TorchGroup over gloo: members in threads, each with its own connections."""

import pytest
import torch
from group_members import run_members, sum_in_order

from lullm.collective.torch_group import TorchGroup
from lullm.errors import WorkerLostError
from lullm.types.parallel.placement import Axis, placements
from lullm.worker.meeting import Meeting, open_seat


def gloo_members(size, work, timeout=20.0):
    """What `work(group)` gives for each member of a group."""
    with Meeting.on_this_host(timeout=timeout) as meeting:
        return run_members(size, lambda rank: TorchGroup.join(meeting.rendezvous, "x", Axis(rank, size)), work)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_in_rank_order_and_rounded_once(size, dtype):
    parts = torch.randn(size, 5, 7).to(dtype)

    def work(group):
        x = parts[group.rank].clone()
        row = parts[group.rank][3:4].clone()
        group.all_reduce_(x)
        group.all_reduce_(row)
        assert torch.equal(row, x[3:4]), "a row's bits follow no other row"
        return x

    for x in gloo_members(size, work):
        assert torch.equal(x, sum_in_order(parts))


def test_columns_come_in_rank_order():
    def work(group):
        return group.all_gather(torch.arange(6.0).view(2, 3) + 10 * group.rank)

    expected = torch.cat([torch.arange(6.0).view(2, 3) + 10 * rank for rank in range(3)], dim=1)
    assert all(torch.equal(found, expected) for found in gloo_members(3, work))


def test_parts_of_longer_rows():
    def work(group):
        x = torch.full((3, 8), float(group.rank + 1))
        group.all_reduce_(x[:, :4])
        group.broadcast_(x[:, 4:6], 1)
        if group.rank == 0:
            group.send(x[:, 2:5], 1)
        else:
            group.receive_(x[:, 5:], 0)
        return x

    first, second = gloo_members(2, work)
    assert first[0].tolist() == [3, 3, 3, 3, 2, 2, 1, 1]
    assert second[0].tolist() == [3, 3, 3, 3, 2, 3, 3, 2]


def test_messages_of_a_pair_keep_their_order_and_type():
    sent = [torch.randn(4, 3).bfloat16(), torch.arange(5), torch.randn(2)]

    def work(group):
        if group.rank == 0:
            return [group.send(x, 1) for x in sent]
        received = [torch.empty_like(x) for x in sent]
        for x in received:
            group.receive_(x, 0)
        return received

    _, received = gloo_members(2, work)
    assert all(torch.equal(a, b) for a, b in zip(sent, received, strict=True))


def test_several_hosts_meet_at_a_port():
    def work(group):
        x = torch.ones(2)
        group.all_reduce_(x)
        return x.tolist()

    with Meeting.at("127.0.0.1") as meeting:
        assert meeting.rendezvous.port > 0 and not meeting.descriptors
        found = run_members(2, lambda rank: TorchGroup.join(meeting.rendezvous, "x", Axis(rank, 2)), work)
    assert found == [[2, 2]] * 2


def test_no_rows_are_no_work():
    def work(group):
        x = torch.empty(0, 4)
        group.all_reduce_(x)
        group.broadcast_(x, 0)
        return group.all_gather(x).shape

    assert gloo_members(2, work) == [(0, 8)] * 2


def test_a_member_that_has_gone_is_an_error_of_the_others():
    def work(group):
        group.all_reduce_(torch.ones(2))  # gloo takes 5 seconds to close what was not used
        if group.rank == 0:
            return group.close()
        with pytest.raises(WorkerLostError, match="stage 7"):
            group.all_reduce_(torch.ones(2))

    with Meeting.on_this_host(timeout=3.0) as meeting:
        run_members(2, lambda rank: TorchGroup.join(meeting.rendezvous, "stage 7", Axis(rank, 2)), work)


def test_a_member_that_does_not_come_is_an_error_in_time():
    with Meeting.on_this_host(timeout=0.3) as meeting, pytest.raises(WorkerLostError, match="have not met"):
        TorchGroup.join(meeting.rendezvous, "x", Axis(0, 2))


def test_a_grid_of_workers_has_groups_by_row_and_column():
    def work(seat):
        x = torch.tensor([[float(seat.placement.rank)]])
        across, along = seat.tensor.all_gather(x), seat.pipeline.all_gather(x)
        return across.tolist()[0], along.tolist()[0]

    grid = placements(2, 2)
    with Meeting.on_this_host() as meeting:
        found = run_members(4, lambda rank: open_seat(grid[rank], meeting.rendezvous), work)
    assert found == [([0, 1], [0, 2]), ([0, 1], [1, 3]), ([2, 3], [0, 2]), ([2, 3], [1, 3])]
