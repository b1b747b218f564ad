"""BatchBuilder: positions, slots and row indices of ragged batches, against the obvious loop."""

import random

from lullm.step.batch import BatchBuilder
from lullm.types.sampling_params import SamplingParams
from lullm.types.step import Draw, Span, StepPlan


def draw(seq_id: int) -> Draw:
    return Draw(seq_id, 0, SamplingParams(), 0, [], 0)


def test_random_batches():
    rng = random.Random(0)
    builder = BatchBuilder(max_num_seqs=8, max_num_batched_tokens=200, max_model_len=64, block_size=4)
    for _ in range(200):
        spans = []
        for seq_id in range(rng.randrange(1, 9)):
            start, length = rng.randrange(40), rng.choice([1, 1, 2, 5, 20])
            blocks = [rng.randrange(100) for _ in range(16)]
            spans.append(Span(seq_id, start, [rng.randrange(9) for _ in range(length)], blocks, [draw(seq_id)]))
        batch = builder.build(StepPlan(spans))
        assert batch.token_ids.tolist() == [t for s in spans for t in s.token_ids]
        assert batch.positions.tolist() == [p for s in spans for p in range(s.start, s.end)]
        slots = [s.block_ids[p // 4] * 4 + p % 4 for s in spans for p in range(s.start, s.end)]
        assert batch.layout.slot_mapping.tolist() == slots
        assert batch.layout.context_lens == [s.end for s in spans]
        assert batch.layout.query_lens == [len(s.token_ids) for s in spans]
        for row, span in enumerate(spans):
            needed = -(-span.end // 4)
            assert batch.layout.block_tables[row, :needed].tolist() == list(span.block_ids[:needed])


def test_rows_to_draw_from():
    builder = BatchBuilder(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=16, block_size=4)
    chunk = Span(0, 0, [1, 2, 3], [0])
    prompt = Span(1, 0, [4, 5], [1], [draw(1), draw(2), draw(3)], prompt_targets=[5], num_prompt_logprobs=1)
    decode = Span(4, 3, [6], [2], [draw(4)])
    batch = builder.build(StepPlan([chunk, prompt, decode]))
    assert batch.drawn_rows.tolist() == [4, 5]
    assert batch.draw_index.tolist() == [0, 0, 0, 1]
    assert [d.seq_id for d in batch.draws] == [1, 2, 3, 4]
    assert [(row, span.seq_id) for row, span in batch.prompt_spans] == [(3, 1)]
    assert builder.build(StepPlan([decode])).draw_index is None
