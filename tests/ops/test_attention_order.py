"""Native attention adds up in one order per row: its bits do not depend on what else is in the step.

Each row is computed as a part of whole prompts, and again alone, in chunks, in other batches, with other blocks and
other numbers of threads. Long sequences cross the borders of pieces (1,024 keys), and some rows have several pieces.
"""

import functools
import random

import pytest
import torch
from torch.nn import functional as F

from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cpu import native, native_attention
from lullm.ops.cpu.library import absence, load_library

from .test_attention import prepare
from .test_native_cache import KINDS, cache_of

if absence() is not None:
    pytest.skip(f"no native ops: {absence()}", allow_module_level=True)

LIBRARY = load_library()
LENGTHS = [1, 3, 64, 130, 1100, 2300]
EDGES = [0, 1, 15, 16, 62, 63, 64, 65, 127, 1022, 1023, 1024, 1025, 1087, 2047, 2048, 2100]


@pytest.fixture(autouse=True, params=LIBRARY.available_isas)
def isa(request):
    assert LIBRARY.handle.lullm_select_isa(request.param.encode())
    yield request.param
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())


class Sequences:
    """Queries, keys and values of all positions; `attend` computes any of their rows in one step."""

    def __init__(self, num_q_heads, num_kv_heads, head_size, dtype, window=None, kind="plain", is_chunked=False):
        generator = torch.Generator().manual_seed(head_size)
        self.window, self.is_chunked, self.dtype, self.kind = window, is_chunked, dtype, kind
        self.extras = () if kind == "plain" else (60.0, torch.linspace(-20, 20, num_q_heads))  # soft cap, sinks
        # Keys of growing size: a later one often exceeds what came first by far, so bases are revised.
        self.q, self.keys, self.values = (
            [
                (torch.randn(n, heads, head_size, generator=generator) * torch.linspace(1, size, n)[:, None, None]).to(
                    dtype
                )
                for n in LENGTHS
            ]
            for heads, size in ((num_q_heads, 1), (num_kv_heads, 20), (num_kv_heads, 1))
        )

    def attend(self, spans, seed=0, block_size=16):
        """`spans`: (sequence, first position, last) -> the rows of each."""
        rng = random.Random(seed)
        needed = [-(-last // block_size) for _, _, last in spans]
        ids = list(range(sum(needed)))
        rng.shuffle(ids)
        tables = torch.full((len(spans), max(needed)), 10**9, dtype=torch.int64)
        shape = (len(ids), block_size, *self.keys[0].shape[1:])
        sides = [torch.full(shape, float("nan"), dtype=self.dtype) for _ in range(2)]
        for span, (sequence, _, last) in enumerate(spans):
            blocks = torch.tensor([ids.pop() for _ in range(needed[span])])
            tables[span, : len(blocks)] = blocks
            positions = torch.arange(last)
            slots = blocks[positions // block_size] * block_size + positions % block_size
            for side, rows in zip(sides, (self.keys, self.values), strict=True):
                side.view(-1, *shape[2:])[slots] = rows[sequence][:last]
        layout = AttentionLayout(
            [last - first for _, first, last in spans], [last for _, _, last in spans], tables,
            torch.zeros(0, dtype=torch.int64), block_size, self.window, self.is_chunked,
        )  # fmt: skip
        q = torch.cat([self.q[sequence][first:last] for sequence, first, last in spans])
        prepared = prepare(native_attention, layout)
        cache = cache_of(self.kind, *sides)
        out = native_attention.attention(q, cache, prepared, CausalScores(q.shape[2] ** -0.5, *self.extras))
        assert "grouped" not in vars(prepared), "torch's attention has served"
        return out.split(layout.query_lens)


def assert_equal(sequences, whole, spans, **options):
    for (sequence, first, last), found in zip(spans, sequences.attend(spans, **options), strict=True):
        assert torch.equal(found, whole[sequence][first:last]), (sequence, first, last, options)


CASES = pytest.mark.parametrize(
    ("heads", "head_size", "window"), [((4, 2), 32, None), ((8, 1), 64, 100), ((2, 2), 80, None), ((6, 2), 128, 1030)]
)


@pytest.mark.pairs
@CASES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_of_a_row_depend_on_the_row_alone(dtype, heads, head_size, window):
    assert_order(Sequences(*heads, head_size, dtype, window))


CHUNK_SPANS = [(4, 0, 1100), (5, 90, 2300), (5, 1023, 1024), (5, 1490, 1530)]


@functools.cache  # every instruction set has the same
def in_chunks(dtype, chunk):
    """Sequences, and torch's attention of some of their rows."""
    sequences, expected = Sequences(4, 2, 64, dtype, chunk, is_chunked=True), []
    for sequence, first, last in CHUNK_SPANS:
        rows, columns = torch.arange(first, last)[:, None], torch.arange(last)
        seen = (columns <= rows) & (columns // chunk == rows // chunk)
        sides = (sequences.q[sequence][first:last], sequences.keys[sequence][:last], sequences.values[sequence][:last])
        q, keys, values = (side.transpose(0, 1).float() for side in sides)
        attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, enable_gqa=True)
        expected.append(attended.transpose(0, 1))
    return sequences, expected


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("chunk", [7, 100, 1024, 1500])
def test_chunks(dtype, chunk):
    """The order is that of any window; the numbers are torch's."""
    sequences, expected = in_chunks(dtype, chunk)
    assert_order(sequences)
    tolerance = 1e-4 if dtype == torch.float32 else 0.06
    for found, wanted in zip(sequences.attend(CHUNK_SPANS), expected, strict=True):
        torch.testing.assert_close(found.float(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.pairs
@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize(("heads", "head_size", "window"), [((4, 2), 80, None), ((6, 2), 128, 1030)])
def test_with_a_cache_of_8_bits_soft_cap_and_sinks_too(kind, heads, head_size, window):
    assert_order(Sequences(*heads, head_size, torch.bfloat16, window, kind))


def assert_order(sequences):
    native.set_num_threads(2)
    whole = sequences.attend([(i, 0, n) for i, n in enumerate(LENGTHS)])
    rng = random.Random(0)
    rows = [(i, p, p + 1) for i, n in enumerate(LENGTHS) for p in {*EDGES, n - 1} if p < n]
    for row in rng.sample(rows, 6):
        assert_equal(sequences, whole, [row])
    for threads in (1, 2, 3):
        native.set_num_threads(threads)
        assert_equal(sequences, whole, rows, seed=threads, block_size=8 * threads)
        for size in (2, 3, 5, 9, 40, 300):
            spans = []
            for i, n in enumerate(LENGTHS):
                first = rng.randrange(max(1, n - size))
                spans.append((i, first, min(n, first + rng.randint(1, size))))
            assert_equal(sequences, whole, spans, seed=size, block_size=rng.choice([1, 16, 32]))


def test_a_chunk_may_end_anywhere(isa):
    sequences = Sequences(4, 2, 32, torch.bfloat16)
    native.set_num_threads(2)
    whole = sequences.attend([(5, 0, 2300)])[0]
    rng = random.Random(1)
    first = 0
    while first < 2300:
        last = min(2300, first + rng.choice([1, 7, 64, 200, 500]))
        assert torch.equal(sequences.attend([(5, first, last)])[0], whole[first:last])
        first = last


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_that_are_denormal(dtype):
    """A prompt may be products of floats where a decode is dot products, which take denormals for zero."""
    sequences = Sequences(4, 2, 64, dtype)
    for values in sequences.values:
        values *= 1e-38
        values[::3] *= 0.1
    whole = torch.full_like(sequences.q[5], torch.nan)
    spans = [(5, 0, 128), (5, 1000, 1088), (5, 2020, 2101), (5, 2236, 2300)]  # around `EDGES`: such numbers are slow
    for (_, first, last), rows in zip(spans, sequences.attend(spans), strict=True):
        whole[first:last] = rows
    assert_equal(sequences, {5: whole}, [(5, p, p + 1) for p in (*EDGES, 2299)])


@pytest.mark.pairs
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_or_key_of_nan_stays_nan(dtype, kind):
    """In each row that sees it, of a decode and of a prompt, in its first step and in a later piece; in no other."""
    sequences = Sequences(4, 2, 64, dtype, kind=kind)
    sequences.q[5][1200:1202, 1, 3] = torch.nan  # of key/value head 0
    sequences.q[5][2299, 0] = torch.nan
    if kind != "int8":  # whose numbers are none
        sequences.keys[5][2100, 1, 7] = torch.nan
    for spans in ([(5, 1200, 1204), (5, 2298, 2299), (5, 2299, 2300)], [(5, 0, 2300)]):
        rows = torch.cat([torch.arange(first, last) for _, first, last in spans])
        late = (rows >= 2100) & (kind != "int8")
        expected = torch.stack([rows == 2299, (rows == 1200) | (rows == 1201), late, late], dim=1)
        found = torch.cat(list(sequences.attend(spans))).isnan()
        assert torch.equal(found.all(-1), expected) and torch.equal(found.any(-1), expected)
