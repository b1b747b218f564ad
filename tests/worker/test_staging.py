"""Staging of decode steps: what goes over the bus, and where it lies when it has arrived."""

import pytest
import torch
from fake_device import FakeDevice

from lullm.types.sampling_params import SamplingParams
from lullm.types.step import Draw, Span, StepPlan
from lullm.worker.batch import BatchBuilder

pytest.importorskip("triton")

GREEDY = SamplingParams(temperature=0.0)
MAX_LEN = 40_960


def decodes(*contexts):
    """A plan that decodes one token behind each of these: (context length, first block id)."""
    spans = [
        Span(row, end - 1, [7], list(range(first, first + -(-end // 16))), [Draw(row, 0, GREEDY, 0, [], 0)])
        for row, (end, first) in enumerate(contexts)
    ]
    return StepPlan(spans)


@pytest.fixture
def stage():
    from lullm.worker.staging import Staging

    builder = BatchBuilder(8, 64, MAX_LEN, 16)
    staging = Staging(FakeDevice(), 8, 64, MAX_LEN, 16, None, [1, 2, 4, 8], 1000)

    def step(plan):
        batch = builder.build(plan)
        shape, buffer = staging.fill(batch, None, None)
        return len(buffer), staging.upload(shape, buffer, batch)

    return step


def test_a_decode_step_sends_the_blocks_that_are_there(stage):
    sent, staged = stage(decodes((100, 3), (33, 50), (16, 90)))
    assert sent < 1000, "not 10 KB for each of the four rows"
    tables = staged.layout.block_tables
    assert tables.shape == (4, MAX_LEN // 16) and tables.is_contiguous()
    assert tables[0, :7].tolist() == list(range(3, 10))
    assert tables[1, :3].tolist() == [50, 51, 52] and tables[2, 0] == 90
    assert staged.layout.context_lens.tolist() == [100, 33, 16, 0]
    grown, _ = stage(decodes((2000, 3), (33, 50), (16, 90)))
    assert grown - sent == pytest.approx(4 * 4 * (125 - 7), abs=16)


def test_a_narrow_step_behind_a_wide_one(stage):
    """The parts stay where they are; every row has its own blocks, whatever stands behind them."""
    _, wide = stage(decodes((1600, 3), (1600, 200)))
    addresses = [(name, getattr(wide.parts, name).data_ptr()) for name in wide.parts.__slots__]
    _, narrow = stage(decodes((17, 400), (40, 500)))
    assert [(name, getattr(narrow.parts, name).data_ptr()) for name in narrow.parts.__slots__] == addresses
    assert narrow.layout.block_tables[0, :2].tolist() == [400, 401]
    assert narrow.layout.block_tables[1, :3].tolist() == [500, 501, 502]
    _, prompt = stage(StepPlan([Span(0, 0, [1] * 20, [4, 5])]))
    assert prompt.layout.block_tables.tolist() == [[4, 5]], "prompts bring their own"
    _, again = stage(decodes((17, 400), (40, 500)))
    assert torch.equal(again.layout.block_tables[:, :3], narrow.layout.block_tables[:, :3])
