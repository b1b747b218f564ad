import torch

from lullm.collective.collective import Alone
from lullm.collective.seat import Seat
from lullm.types.parallel.placement import Axis, Placement, placements


def test_one_member_keeps_what_it_has():
    x = torch.randn(3, 4)
    alone = Alone()
    before = x.clone()
    alone.all_reduce_(x)
    assert torch.equal(x, before)
    assert torch.equal(alone.all_gather(x), x)
    Seat().close()


def test_neighbours_in_rank_share_a_stage():
    found = placements(tensor_size=2, pipeline_size=3)
    assert [each.rank for each in found] == list(range(6))
    assert found[3] == Placement(Axis(1, 2), Axis(1, 3))
    assert {each.num_workers for each in found} == {6}
    assert found[0].pipeline.is_first and found[5].pipeline.is_last
