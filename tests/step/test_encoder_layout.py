"""Attention to an encoder's rows: every token of a span sees all of them, whatever stands behind them in the cache."""

import pytest
import torch

from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.selection import TORCH_CPU_OPS, select_ops
from lullm.step.encoder.layout import by_token

HEADS, SIZE, BLOCK_SIZE = 2, 16, 4


@pytest.mark.parametrize("ops", [TORCH_CPU_OPS, select_ops("cpu", "auto", False)], ids=["torch", "native"])
def test_each_token_sees_all_rows(ops):
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(9, BLOCK_SIZE, HEADS, SIZE, generator=generator) for _ in range(2))
    query_lens, context_lens = [3, 1, 2], [6, 11, 1]
    tables = torch.tensor([[7, 2, 0], [4, 1, 8], [5, 0, 0]])
    queries = torch.randn(sum(query_lens), HEADS, SIZE, generator=generator)
    layout = AttentionLayout(query_lens, context_lens, tables, torch.full((6,), -1), BLOCK_SIZE)
    prepared = ops.prepare_attention(by_token(DeviceLayout.of(layout), query_lens))
    with torch.inference_mode():
        found = ops.attention(queries, LayerCache(keys, values), prepared, CausalScores(0.25))
    row = 0
    for query_len, length, table in zip(query_lens, context_lens, tables, strict=True):
        seen = [(side[table].flatten(0, 1)[:length]).transpose(0, 1) for side in (keys, values)]  # [H, L, D]
        for _ in range(query_len):
            shares = (seen[0] @ queries[row][:, :, None] * 0.25).softmax(1)
            assert torch.allclose(found[row], (shares * seen[1]).sum(1), atol=1e-5)
            row += 1
