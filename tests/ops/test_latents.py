"""Attention over latent vectors in the native library: spans over expanded heads beside absorbed ones."""

from dataclasses import dataclass

import pytest
import torch

from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cache import int8_cache
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.cpu import native_latent
from lullm.ops.cpu.library import load_library
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.head_products import LatentMatrices, absorbed_over
from lullm.ops.selection import NATIVE_CPU_OPS, REFERENCE_OPS

pytestmark = pytest.mark.skipif(load_library() is None, reason="the native ops are not built here")
BLOCK = 16


@dataclass(frozen=True)
class Sizes:
    heads: int
    plain: int
    turned: int
    value: int
    rank: int

    @property
    def query(self):
        return self.plain + self.turned


GLM = Sizes(heads=3, plain=64, turned=32, value=96, rank=160)
"""Values are as long as keys."""
DEEPSEEK = Sizes(heads=4, plain=64, turned=32, value=64, rank=96)
"""Values are shorter."""


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Step:
    """Spans of (rows, context), their blocks in no order, over a cache whose other slots are NaN."""

    def __init__(self, sizes, spans, dtype=torch.float32):
        num_blocks = [-(-context // BLOCK) for _, context in spans]
        order = torch.randperm(sum(num_blocks) + 1, generator=torch.Generator().manual_seed(1))
        tables = torch.zeros(len(spans), max(num_blocks), dtype=torch.int64)
        rows = torch.full((len(order), BLOCK, 1, sizes.rank + sizes.turned), torch.nan, dtype=dtype)
        for span, (_, context) in enumerate(spans):
            first = sum(num_blocks[:span])
            tables[span, : num_blocks[span]] = order[first : first + num_blocks[span]]
            values = normal(context, 1, sizes.rank + sizes.turned, seed=2 + span).to(dtype)
            for position in range(context):
                rows[tables[span, position // BLOCK], position % BLOCK] = values[position]
        num_rows = sum(count for count, _ in spans)
        self.cache = LayerCache(rows, rows)
        self.q = normal(num_rows, sizes.heads, sizes.query, seed=3).to(dtype)
        whole = normal(sizes.heads, sizes.plain + sizes.value, sizes.rank, seed=4).mul_(sizes.rank**-0.5).to(dtype)
        self.matrices = LatentMatrices(*whole.split((sizes.plain, sizes.value), dim=1))
        query_lens, contexts = [count for count, _ in spans], [context for _, context in spans]
        slots = torch.zeros(num_rows, dtype=torch.int64)
        self.layout = DeviceLayout.of(AttentionLayout(query_lens, contexts, tables, slots, BLOCK))
        self.scores = CausalScores(sizes.query**-0.5)

    def run(self, attend, ops):
        return attend(self.q, self.matrices, self.cache, ops.prepare_attention(self.layout), self.scores)

    def expected(self):
        return self.run(absorbed_over(REFERENCE_OPS.multiply_heads, REFERENCE_OPS.attention), REFERENCE_OPS)

    def found(self):
        return self.run(NATIVE_CPU_OPS.attend_latents, NATIVE_CPU_OPS)


@pytest.fixture
def expanded_rows(monkeypatch):
    """The numbers of rows that were computed over expanded heads, and of the heads at a time."""
    seen = []
    attention = native_latent.attention

    def watched(q, cache, *rest):
        if cache.block_size == native_latent._BLOCK_SIZE:
            seen.append(tuple(q.shape[:2]))
        return attention(q, cache, *rest)

    monkeypatch.setattr(native_latent, "attention", watched)
    return seen


SPANS = {
    "a prompt": ([(200, 200)], [200]),
    "few rows": ([(63, 63), (1, 90)], []),
    "a prompt between decodes": ([(1, 70), (1, 9), (150, 150), (1, 33)], [150]),
    "prompts side by side": ([(100, 100), (129, 129), (70, 70)], [299]),
    "a chunk behind others": ([(128, 200), (1, 5), (90, 90)], [128, 90]),
    "few rows behind many": ([(64, 1500), (200, 1500)], [200]),
}


@pytest.mark.parametrize(("spans", "expanded"), SPANS.values(), ids=SPANS)
@pytest.mark.parametrize("sizes", [GLM, DEEPSEEK], ids=["equal sizes", "shorter values"])
def test_spans(sizes, spans, expanded, expanded_rows):
    step = Step(sizes, spans)
    torch.testing.assert_close(step.found(), step.expected(), rtol=1e-4, atol=2e-5)
    assert expanded_rows == [(rows, sizes.heads) for rows in expanded]


@pytest.mark.parametrize("sizes", [GLM, DEEPSEEK], ids=["equal sizes", "shorter values"])
def test_bfloat16(sizes, expanded_rows):
    step = Step(sizes, [(1, 40), (260, 300)], torch.bfloat16)
    exact = Step(sizes, [(1, 40), (260, 300)])
    exact.q, exact.cache = step.q.float(), LayerCache(*[step.cache.key.float()] * 2)
    exact.matrices = LatentMatrices(step.matrices.keys.float(), step.matrices.values.float())
    torch.testing.assert_close(step.found().float(), exact.expected(), rtol=0.02, atol=0.02)
    assert expanded_rows == [(260, sizes.heads)]


def test_eight_bits(expanded_rows):
    step = Step(GLM, [(200, 200)])
    rows = int8_cache.quantize(step.cache.key)
    step.cache = LayerCache(rows, rows)
    torch.testing.assert_close(step.found(), step.expected(), rtol=1e-4, atol=2e-5)
    assert expanded_rows == [(200, GLM.heads)]


def test_few_heads_at_a_time(monkeypatch, expanded_rows):
    step = Step(GLM, [(200, 200)])
    whole = step.found()
    monkeypatch.setattr(native_latent, "_MAX_BYTES", 256 * 2 * GLM.query * 4)
    assert torch.equal(step.found(), whole)
    assert expanded_rows == [(200, 3), (200, 2), (200, 1)]


def test_few_contexts_at_a_time(monkeypatch, expanded_rows):
    step = Step(GLM, [(100, 100), (129, 129), (70, 70)])
    whole = step.found()
    monkeypatch.setattr(native_latent, "_MAX_TOKENS", 200)
    assert torch.equal(step.found(), whole)
    assert [rows for rows, _ in expanded_rows] == [299, 100, 199]


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(heads=2, plain=32, turned=16, value=64, rank=64),
        Sizes(heads=2, plain=48, turned=16, value=32, rank=64),
        Sizes(heads=2, plain=36, turned=16, value=48, rank=64),
    ],
    ids=["longer values", "values that nothing fills up", "no native attention"],
)
def test_what_is_absorbed(sizes, expanded_rows):
    step = Step(sizes, [(200, 200)])
    torch.testing.assert_close(step.found(), step.expected(), rtol=1e-4, atol=2e-5)
    assert expanded_rows == []
