"""DeviceLayout: the same step in tensors and back, with the bounds that a launch follows from."""

import pytest
import torch

from lullm.ops.attention_layout import AttentionLayout
from lullm.ops.device_layout import DeviceLayout

MIXED = AttentionLayout([1, 5, 2], [40, 5, 9], torch.tensor([[3, 1, 0], [2, 0, 0], [4, 0, 0]]), torch.arange(8), 16, 7)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_there_and_back(index_dtype):
    placed = DeviceLayout.of(MIXED, index_dtype=index_dtype, semaphores_per_span=4)
    assert placed.query_starts.tolist() == [0, 1, 6, 8] and placed.num_spans == 3
    assert {t.dtype for t in (placed.query_starts, placed.context_lens, placed.block_tables)} == {index_dtype}
    assert placed.slot_mapping.dtype == torch.int64
    assert len(placed.semaphores) == 12 and not placed.semaphores.any()
    assert (placed.max_query_len, placed.max_context_len) == (5, 40)
    assert (placed.num_prefill_tokens, placed.num_prefill_spans) == (7, 2), "the decode is not counted"
    back = placed.on_host()
    assert (back.query_lens, back.context_lens) == (MIXED.query_lens, MIXED.context_lens)
    assert torch.equal(back.block_tables, MIXED.block_tables) and torch.equal(back.slot_mapping, MIXED.slot_mapping)
    assert (back.block_size, back.window) == (16, 7)


def test_no_spans():
    empty = AttentionLayout([], [], torch.zeros(0, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 16)
    placed = DeviceLayout.of(empty)
    assert placed.query_starts.tolist() == [0] and placed.max_query_len == 0
    assert placed.on_host().query_lens == []
