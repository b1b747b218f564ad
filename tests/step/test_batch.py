"""BatchBuilder: positions, slots and row indices of ragged batches, against the obvious loop."""

import random

from kit.sched.plans import new_draw, new_span

from lullm.step.batch import BatchBuilder
from lullm.step.limits import StepLimits
from lullm.step.pooling import PooledSpan
from lullm.types.draw import Draw, DrawParams
from lullm.types.packed import pack, unpack
from lullm.types.step import Span, StepPlan


def test_random_batches():
    rng = random.Random(0)
    builder = BatchBuilder(StepLimits(8, 200, 64, 4))
    # Few tables, so that a row often has what stands there from an earlier step, or its beginning.
    tables = [[rng.randrange(100) for _ in range(16)] for _ in range(3)]
    for _ in range(400):
        spans = []
        for seq_id in range(rng.randrange(1, 9)):
            start, length = rng.randrange(40), rng.choice([1, 1, 2, 5, 20])
            blocks = rng.choice(tables)[: rng.randrange(-(-(start + length) // 4), 17)]
            tokens = [rng.randrange(9) for _ in range(length)]
            spans.append(new_span(seq_id, start, tokens, blocks, [new_draw(seq_id, row=length - 1)]))
        batch = builder.build(StepPlan(spans))
        assert batch.token_ids.tolist() == [t for s in spans for t in unpack(s.token_ids)]
        assert batch.positions.tolist() == [p for s in spans for p in range(s.start, s.end)]
        slots = [unpack(s.block_ids[0])[p // 4] * 4 + p % 4 for s in spans for p in range(s.start, s.end)]
        assert batch.slot_mapping.tolist() == [slots]
        assert batch.context_lens.tolist() == [s.end for s in spans]
        assert batch.query_lens == [s.num_tokens for s in spans]
        for row, span in enumerate(spans):
            needed = -(-span.end // 4)
            assert batch.block_tables[0, row, :needed].tolist() == unpack(span.block_ids[0])[:needed]


def test_every_cache_group_has_its_own_blocks_and_slots():
    builder = BatchBuilder(StepLimits(4, 16, 64, 4, windows=(None, 3)))
    chunk = new_span(0, 2, [1, 2, 3], ([5, 6], [9, 8]))
    decode = new_span(1, 8, [4], ([0, 1, 2], [-1, -1, 7]), [new_draw(1)])
    batch = builder.build(StepPlan([chunk, decode]))
    assert batch.context_lens.tolist() == [5, 9]
    assert batch.slot_mapping.tolist() == [[22, 23, 24, 8], [38, 39, 32, 28]]
    assert batch.block_tables[:, 1].tolist() == [[0, 1, 2], [-1, -1, 7]]


def test_rows_to_draw_from():
    builder = BatchBuilder(StepLimits(4, 16, 16, 4))
    chunk = new_span(0, 0, [1, 2, 3], [0])
    forks = [new_draw(seq_id, row=1) for seq_id in (1, 2, 3)]
    prompt = new_span(1, 0, [4, 5], [1], forks, prompt_targets=[5], num_prompt_logprobs=1)
    decode = new_span(4, 3, [6], [2], [new_draw(4)])
    batch = builder.build(StepPlan([chunk, prompt, decode]))
    assert batch.drawn_rows == [4, 5]
    assert batch.draw_index == [0, 0, 0, 1]
    assert [d.seq_id for d in batch.draws] == [1, 2, 3, 4]
    assert [(row, span.seq_id) for row, span in batch.prompt_spans] == [(3, 1)]
    assert builder.build(StepPlan([decode])).draw_index is None


def test_rows_that_are_pooled():
    """They stand behind those that are drawn from, and a step with them is no batch of decodes."""
    builder = BatchBuilder(StepLimits(4, 32, 64, 4))
    params = DrawParams()
    spans = [
        Span(1, 0, pack([5, 6, 7]), (pack([0]),), pooled_rows=(1, 3)),
        Span(2, 4, pack([8]), (pack([1, 2]),), (Draw(2, 0, params),)),
        Span(3, 0, pack([9]), (pack([3]),), pooled_rows=(0, 1), sums_pooled=False),
    ]
    batch = builder.build(StepPlan(spans))
    assert batch.drawn_rows == [3] and batch.wanted_rows == [3, 1, 2, 4]
    assert batch.pooled_spans == [PooledSpan(1, (1, 3), True), PooledSpan(3, (4, 5), False)] and not batch.is_decode
    single = builder.build(StepPlan(spans[1:]))
    assert not single.is_decode and single.wanted_rows == [0, 1]
    assert builder.build(StepPlan(spans[1:2])).is_decode
