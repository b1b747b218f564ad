"""Groups over each transport: members in threads of one process, each with an end of its own."""

import pytest
import torch
from kit.worker.members import TRANSPORTS, run_members, run_seats, sum_in_order

from lullm.collective.collective import rows_of
from lullm.collective.torch_group import TorchGroup
from lullm.errors import WorkerLostError
from lullm.types.parallel.placement import Axis, placements
from lullm.worker.meeting import Meeting, open_seat

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


@DTYPES
@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_in_rank_order_and_rounded_once(transport, size, dtype):
    parts = torch.randn(size, 5, 7).to(dtype)

    def work(seat):
        x = parts[seat.placement.rank].clone()
        row = parts[seat.placement.rank][3:4].clone()
        seat.tensor.all_reduce_(x)
        seat.tensor.all_reduce_(row)
        assert torch.equal(row, x[3:4]), "a row's bits follow no other row"
        return x

    for x in run_seats(transport, work, tensor=size):
        assert torch.equal(x, sum_in_order(parts))


def test_columns_come_in_rank_order(transport):
    def work(seat):
        return seat.tensor.all_gather(torch.arange(6.0).view(2, 3) + 10 * seat.placement.rank)

    expected = torch.cat([torch.arange(6.0).view(2, 3) + 10 * rank for rank in range(3)], dim=1)
    assert all(torch.equal(found, expected) for found in run_seats(transport, work, tensor=3))


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 7, 9])
def test_rows_are_dealt_with_the_columns_of_all(transport, num_rows):
    """Of 70,000 columns a row takes several rounds over shared memory."""
    parts = torch.randn(3, num_rows, 70_000 if num_rows == 4 else 5)

    def work(seat):
        return seat.tensor.deal_rows(parts[seat.placement.rank])

    expected = torch.cat(list(parts), dim=1)
    seen = set()
    for rank, found in enumerate(run_seats(transport, work, tensor=3)):
        own = rows_of(num_rows, rank, 3)
        assert torch.equal(found, expected[own.start : own.stop])
        seen.update(own)
    assert seen == set(range(num_rows))


def test_parts_of_longer_rows(transport):
    def work(seat):
        group = seat.tensor
        x = torch.full((3, 8), float(group.rank + 1))
        group.all_reduce_(x[:, :4])
        if group.rank == 0:
            group.send(x[:, 2:5], 1)
        else:
            group.receive_(x[:, 5:], 0)
        return x

    first, second = run_seats(transport, work, tensor=2)
    assert first[0].tolist() == [3, 3, 3, 3, 1, 1, 1, 1]
    assert second[0].tolist() == [3, 3, 3, 3, 2, 3, 3, 1]


def test_messages_of_a_pair_keep_their_order_and_type(transport):
    sent = [torch.randn(4, 3).bfloat16(), torch.arange(5), torch.randn(2)]

    def work(seat):
        if seat.pipeline.rank == 0:
            return [seat.pipeline.send(x, 1) for x in sent]
        received = [torch.empty_like(x) for x in sent]
        for x in received:
            seat.pipeline.receive_(x, 0)
        return received

    _, received = run_seats(transport, work, pipeline=2)
    assert all(torch.equal(a, b) for a, b in zip(sent, received, strict=True))


def test_no_rows_are_no_work(transport):
    def work(seat):
        x = torch.empty(0, 4)
        seat.tensor.all_reduce_(x)
        shape = seat.tensor.all_gather(x).shape
        seat.tensor.all_reduce_(torch.ones(2))  # without this one left before the other had connected
        return shape

    assert run_seats(transport, work, tensor=2) == [(0, 8)] * 2


def test_a_member_that_has_gone_is_an_error_of_the_others(transport):
    def work(seat):
        seat.tensor.all_reduce_(torch.ones(2))  # gloo takes 5 seconds to close what was not used
        if seat.tensor.rank == 0:
            return seat.close()
        for _ in range(2):
            with pytest.raises(WorkerLostError, match="stage 0"):
                seat.tensor.all_reduce_(torch.ones(2))

    run_seats(transport, work, tensor=2)


def test_a_member_that_has_left_says_so(transport):
    def work(seat):
        seat.tensor.all_reduce_(torch.ones(2))
        seat.close()
        with pytest.raises(WorkerLostError, match="has left"):
            seat.tensor.all_reduce_(torch.ones(2))

    run_seats(transport, work, tensor=2)


def test_a_member_that_does_not_come_is_an_error_in_time(transport):
    with Meeting.on_this_host(0.3, transport) as meeting, pytest.raises(WorkerLostError, match="stage 0"):
        open_seat(placements(2, 1)[0], meeting.rendezvous)


def test_a_grid_of_workers_has_groups_by_row_and_column(transport):
    def work(seat):
        x = torch.tensor([[float(seat.placement.rank)]])
        across, along = seat.tensor.all_gather(x), seat.pipeline.all_gather(x)
        return across.tolist()[0], along.tolist()[0]

    found = run_seats(transport, work, tensor=2, pipeline=2)
    assert found == [([0, 1], [0, 2]), ([0, 1], [1, 3]), ([2, 3], [0, 2]), ([2, 3], [1, 3])]


def test_several_hosts_meet_at_a_port(transport):
    if transport != "gloo":
        pytest.skip("memory is of one host")

    def work(group):
        x = torch.ones(2)
        group.all_reduce_(x)
        return x.tolist()

    with Meeting.at("127.0.0.1") as meeting:
        assert meeting.rendezvous.port > 0 and not meeting.descriptors
        found = run_members(2, lambda rank: TorchGroup.join(meeting.rendezvous, "x", Axis(rank, 2)), work)
    assert found == [[2, 2]] * 2
