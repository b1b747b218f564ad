"""Staging: what the host writes is what stands at the parts of the device's buffer, filled up or not."""

import math
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from kit.device.fake_device import FAKE_OPS, FakeDevice
from kit.sched.plans import new_draw, new_span

from lullm.ops.selection import TORCH_CPU_OPS
from lullm.step import staging as staging_module
from lullm.step.batch import BatchBuilder
from lullm.step.limits import StepLimits
from lullm.step.stage_parts import StageBuffer, StageShape, stage_bytes
from lullm.step.staging import Staging
from lullm.types.step import PENDING_TOKEN, StepPlan

SIZES_OF_BATCHES = (6, 32, 40, 8, (None,))
LIMITS = StepLimits(*SIZES_OF_BATCHES, max_in_flight=2, feeds_back=True)
SIZES = [1, 2, 4, 6]
VOCAB = 50


def new_staging(ops=FAKE_OPS, sizes=SIZES):
    return Staging(FakeDevice(), ops, LIMITS, sizes, VOCAB)


def draw(seq_id, **params):
    return new_draw(seq_id, token_ids=[0] * 3, prompt_len=2, **params)


def decode(seq_id, start, blocks, num_draws=1, **params):
    return new_span(seq_id, start, [seq_id + 1], blocks, [draw(seq_id, **params) for _ in range(num_draws)])


def stage(staging, spans, sources=None, keys=None):
    """(shape, the staged batch, the host's buffer)."""
    batch = BatchBuilder(LIMITS).build(StepPlan(spans))
    filled = staging.fill(batch, sources, keys)
    staging.upload(filled)
    return filled.shape, staging.step(filled, batch), filled.buffer


def test_decodes_are_filled_up_with_rows_that_do_nothing():
    staging = new_staging()
    spans = [decode(5, 9, [3, 1]), decode(6, 0, [2]), decode(7, 39, [4, 0, 5, 6, 7])]
    shape, staged, _ = stage(staging, spans, np.array([-1, 2, -1]))
    parts, layout = staged.parts, staged.layouts[0]
    assert shape.is_decode and shape.num_spans == 4 and layout.block_tables.shape == (4, 5)
    assert parts.token_ids.tolist() == [6, 7, 8, 0] and parts.positions.tolist() == [9, 0, 39, 0]
    assert parts.slot_mapping.tolist() == [[8 + 1, 16, 7 * 8 + 7, -1]]
    assert parts.sources.tolist() == [-1, 2, -1, -1]
    assert parts.context_lens.tolist() == [10, 1, 40, 0] and parts.query_starts.tolist() == [0, 1, 2, 3, 4]
    assert layout.block_tables[0, :2].tolist() == [3, 1] and layout.block_tables[2].tolist() == [4, 0, 5, 6, 7]
    assert parts.temperatures.tolist() == [0.0] * 4, "no random numbers: all are greedy"
    assert (layout.max_query_len, layout.max_context_len) == (1, 40)
    assert (layout.num_prefill_tokens, layout.num_prefill_spans) == (0, 0)
    addresses = [getattr(parts, name).data_ptr() for name in parts.__slots__]
    again = stage(staging, spans)[1].parts
    assert [getattr(again, name).data_ptr() for name in parts.__slots__] == addresses, "a recording reads them"


@pytest.mark.parametrize("num, size", [(1, 1), (2, 2), (3, 4), (4, 4), (5, 6), (6, 6)])
def test_the_least_size_that_holds_a_batch(num, size):
    assert stage(new_staging(), [decode(i, 3, [i]) for i in range(num)])[0].num_spans == size


def test_draws_as_the_kernel_wants_them():
    spans = [
        decode(0, 3, [0], temperature=0.0, top_k=7),
        decode(1, 3, [1], temperature=1e-60, top_k=VOCAB, top_p=0.25),
        decode(2, 3, [2], temperature=0.5, top_k=9, min_p=0.5),
    ]
    staging = new_staging()
    table = stage(staging, spans, None, np.array([1, -2, 3]))[1].parts
    tiny = float(np.finfo(np.float32).tiny)
    assert table.temperatures.tolist() == [0.0, tiny, 0.5, 0.0], "a row that fills up is greedy"
    assert table.top_k.tolist() == [7, VOCAB, 9, 1] and table.top_p.tolist() == [1.0, 0.25, 1.0, 1.0]
    assert table.keys.tolist() == [1, -2, 3, 0]
    floors = table.min_p_floors.tolist()
    assert floors[0] == floors[1] == floors[3] == -math.inf and floors[2] == pytest.approx(math.log(0.5))
    for _ in range(2):  # both of the host's buffers
        assert stage(staging, spans)[1].parts.temperatures.tolist() == [0.0] * 4
    over = [decode(0, 3, [0], temperature=1.0, top_k=VOCAB + 5)]
    assert stage(staging, over, None, np.array([5]))[1].parts.top_k.tolist() == [VOCAB]


def test_what_is_no_batch_of_decodes_keeps_its_own_size():
    chunk = new_span(1, 4, [7, 8, 9], [2], [draw(1, row=2)])
    shape, staged, _ = stage(new_staging(), [decode(0, 3, [0]), chunk, new_span(2, 0, [5, 6], [1])])
    assert not shape.is_decode
    assert (shape.num_tokens, shape.num_spans, shape.num_rows, shape.num_draws) == (6, 3, 2, 2)
    assert staged.parts.query_starts.tolist() == [0, 1, 4, 6] and staged.parts.wanted_rows.tolist() == [0, 3]
    [layout] = staged.layouts
    assert (layout.max_query_len, layout.max_context_len) == (3, 7)
    assert (layout.num_prefill_tokens, layout.num_prefill_spans) == (5, 2)
    shared = [decode(0, 3, [0], num_draws=2)]  # two draws from one row
    shape, staged, _ = stage(new_staging(), shared)
    assert not shape.is_decode and staged.parts.draw_index.tolist() == [0, 0]
    no_draw = [decode(0, 3, [0]), new_span(1, 0, [5], [1])]
    twice = [decode(0, 3, [0], num_draws=2), new_span(1, 0, [5], [1])]
    scored = [new_span(0, 3, [4], [0], [draw(0)], prompt_targets=[5], num_prompt_logprobs=1)]
    assert not any(stage(new_staging(), spans)[0].is_decode for spans in (no_draw, twice, scored))
    assert stage(new_staging(), [decode(0, 3, [0]), decode(1, 3, [1])])[0].is_decode


def test_the_next_step_leaves_the_buffer_that_is_being_copied_alone():
    staging = new_staging()
    _, _, first = stage(staging, [decode(3, 3, [0])])
    before = first.clone()
    _, _, second = stage(staging, [decode(4, 9, [1, 2])])
    assert torch.equal(first, before) and not torch.equal(second, before)
    _, _, third = stage(staging, [decode(4, 9, [1, 2])])
    assert third.data_ptr() == first.data_ptr()


def test_a_cleared_batch_is_harmless():
    staging = new_staging()
    stage(staging, [decode(i, 30, [1, 2, 3, 4]) for i in range(4)], np.zeros(4, np.int64), np.ones(4))
    staging.clear(4)
    parts = staging.decode_step(4).parts
    assert parts.slot_mapping.tolist() == [[-1] * 4]
    assert parts.query_starts.tolist() == [0, 1, 2, 3, 4]
    assert not any(getattr(parts, n).any() for n in ("token_ids", "positions", "context_lens", "temperatures"))


def test_pending_tokens_are_staged_as_they_are():
    span = new_span(0, 3, [PENDING_TOKEN], [0], [draw(0)])
    parts = stage(new_staging(), [span], np.array([0]))[1].parts
    assert parts.token_ids.tolist() == [PENDING_TOKEN] and parts.sources.tolist() == [0]


MAX_LEN = 40_960


def decodes(*contexts):
    """A plan that decodes one token behind each of these: (context length, first block id)."""
    spans = [
        new_span(row, end - 1, [7], range(first, first + -(-end // 16)), [new_draw(row, temperature=0.0)])
        for row, (end, first) in enumerate(contexts)
    ]
    return StepPlan(spans)


@pytest.fixture
def stage_long():
    limits = StepLimits(8, 64, MAX_LEN, 16)
    builder, staging = BatchBuilder(limits), Staging(FakeDevice(), FAKE_OPS, limits, [1, 2, 4, 8], 1000)

    def step(plan):
        batch = builder.build(plan)
        filled = staging.fill(batch, None, None)
        staging.upload(filled)
        return len(filled.buffer), staging.step(filled, batch)

    return step


def test_a_decode_step_sends_the_blocks_that_are_there(stage_long):
    sent, staged = stage_long(decodes((100, 3), (33, 50), (16, 90)))
    assert sent < 1000, "not 10 KB for each of the four rows"
    tables = staged.layouts[0].block_tables
    assert tables.shape == (4, MAX_LEN // 16) and tables.is_contiguous()
    assert tables[0, :7].tolist() == list(range(3, 10))
    assert tables[1, :3].tolist() == [50, 51, 52] and tables[2, 0] == 90
    assert staged.layouts[0].context_lens.tolist() == [100, 33, 16, 0]
    grown, _ = stage_long(decodes((2000, 3), (33, 50), (16, 90)))
    assert grown - sent == pytest.approx(4 * 4 * (125 - 7), abs=16)


def test_a_narrow_step_behind_a_wide_one(stage_long):
    """The parts stay where they are; every row has its own blocks, whatever stands behind them."""
    _, wide = stage_long(decodes((1600, 3), (1600, 200)))
    addresses = [(name, getattr(wide.parts, name).data_ptr()) for name in wide.parts.__slots__]
    _, narrow = stage_long(decodes((17, 400), (40, 500)))
    assert [(name, getattr(narrow.parts, name).data_ptr()) for name in narrow.parts.__slots__] == addresses
    assert narrow.layouts[0].block_tables[0, :2].tolist() == [400, 401]
    assert narrow.layouts[0].block_tables[1, :3].tolist() == [500, 501, 502]
    _, prompt = stage_long(StepPlan([new_span(0, 0, [1] * 20, [4, 5])]))
    assert prompt.layouts[0].block_tables.tolist() == [[4, 5]], "prompts bring their own"
    _, again = stage_long(decodes((17, 400), (40, 500)))
    assert torch.equal(again.layouts[0].block_tables[:, :3], narrow.layouts[0].block_tables[:, :3])


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_arrays_and_tensors_lie_at_the_same_bytes(index_dtype):
    """What one kind of part writes the other reads, for sizes that leave gaps between the parts."""
    shape = StageShape(5, 3, 7, num_rows=2, num_draws=3, num_indexed=3, num_sources=5, num_groups=2, num_planed=5)
    buffer = torch.zeros(stage_bytes(shape, index_dtype), dtype=torch.uint8)
    arrays = StageBuffer.of_array(buffer.numpy(), index_dtype).cut(shape)
    for number, name in enumerate(arrays.__slots__):
        getattr(arrays, name)[...] = number + 1
    tensors = StageBuffer.of_tensor(buffer, index_dtype).cut(shape)
    for number, name in enumerate(tensors.__slots__):
        part = getattr(tensors, name)
        assert part.shape == getattr(arrays, name).shape and (part == number + 1).all(), name
        assert part.data_ptr() % part.dtype.itemsize == 0
    assert tensors.block_tables.shape == (2, 3, 7) and tensors.slot_mapping.shape == (2, 5)
    assert tensors.planes.shape == (3, 5)
    assert tensors.block_tables.dtype == index_dtype


def test_a_cpu_takes_every_size_and_its_own_integers():
    staging = new_staging(TORCH_CPU_OPS, range(1, 7))
    for num in (1, 3, 5):
        shape, staged, _ = stage(staging, [decode(i, 3 + i, [i]) for i in range(num)])
        assert shape.num_spans == num and staged.layouts[0].context_lens.tolist() == [4 + i for i in range(num)]
        integers = staged.layouts[0].query_starts, staged.layouts[0].context_lens, staged.layouts[0].block_tables
        assert {tensor.dtype for tensor in integers} == {torch.int64}


def test_every_cache_group_has_its_tables_and_slots():
    limits = StepLimits(*SIZES_OF_BATCHES[:-1], (None, 3), chunked_groups=(1,))
    builder, staging = BatchBuilder(limits), Staging(FakeDevice(), FAKE_OPS, limits, SIZES, VOCAB)

    def stage(spans):
        batch = builder.build(StepPlan(spans))
        filled = staging.fill(batch, None, None)
        staging.upload(filled)
        return staging.step(filled, batch)

    tables = [(0, ([3, 1], [-1, 6])), (1, ([2, 5], [-1, 7])), (2, ([4, 0], [-1, 8]))]
    decodes = [new_span(i, 9 + i, [7], blocks, [new_draw(i)]) for i, blocks in tables]
    full, windowed = stage(decodes).layouts
    assert (full.window, windowed.window) == (None, 3)
    assert (full.is_chunked, windowed.is_chunked) == (False, True)
    assert full.slot_mapping.tolist() == [9, 42, 3, -1] and windowed.slot_mapping.tolist() == [49, 58, 67, -1]
    assert full.block_tables[:3, :2].tolist() == [[3, 1], [2, 5], [4, 0]]
    assert windowed.block_tables[:3, :2].tolist() == [[-1, 6], [-1, 7], [-1, 8]]
    chunks = [new_span(0, 7, [1, 2], ([3, 1], [5, 6])), decodes[1]]
    full, windowed = stage(chunks).layouts
    assert full.slot_mapping.tolist() == [31, 8, 42] and windowed.slot_mapping.tolist() == [47, 48, 58]
    assert full.block_tables.tolist() == [[3, 1], [2, 5]] and windowed.block_tables.tolist() == [[5, 6], [-1, 7]]
    staging.clear(4)
    assert {int(slot) for layout in staging.decode_step(4).layouts for slot in layout.slot_mapping} == {-1}


def test_one_step_in_flight_has_no_place_for_pending_tokens():
    staging = Staging(FakeDevice(), FAKE_OPS, StepLimits(*SIZES_OF_BATCHES), SIZES, VOCAB)
    _, staged, first = stage(staging, [decode(0, 3, [0])])
    assert len(staged.parts.sources) == 0
    assert stage(staging, [decode(0, 4, [0])])[2].data_ptr() == first.data_ptr(), "one buffer of the host will do"


def test_a_cpu_loads_no_triton():
    code = "import sys; import lullm.worker.worker; sys.exit('triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


DRAWS = ("top_k", "top_p", "min_p_floors", "keys")


def test_what_a_buffer_keeps_is_what_a_new_one_would_get(monkeypatch):
    """Random batches over two buffers in turn; prompts among them fill the buffer with something else."""
    written = []
    real = staging_module._write_columns
    monkeypatch.setattr(staging_module, "_write_columns", lambda *args: written.append(1) or real(*args))
    chance, kept, steps = random.Random(5), new_staging(), 120
    kinds = [{"temperature": 0.5, "top_p": 0.3}, {"temperature": 0.9, "top_k": 4}, {"temperature": 0.0}]
    params, count = kinds[:1] * 6, 4
    for step in range(steps):
        if chance.random() < 0.06:
            params, count = [chance.choice(kinds) for _ in range(6)], chance.choice((2, 3, 4))
        spans = [decode(i, 3 + step % 20, [i, 1, 2], **params[i]) for i in range(count)]
        if chance.random() < 0.04:
            spans = [*spans[:1], new_span(9, 0, [1, 2, 3], [7], [])]
        draws = [each for span in spans for each in span.draws]
        keys = None if all(each.params.is_greedy for each in draws) else np.arange(len(draws)) + step
        found, before = stage(kept, spans, keys=keys)[1].parts, len(written)
        fresh = stage(new_staging(), spans, keys=keys)[1].parts
        del written[before:]
        for name in ("temperatures", "query_starts", "context_lens", "token_ids", *(() if keys is None else DRAWS)):
            assert torch.equal(getattr(found, name), getattr(fresh, name)), (step, name)
    assert len(written) < steps / 2, "most steps write only the keys"
