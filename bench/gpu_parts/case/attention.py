"""Attention at production shapes: the cases, their data, and what is computed of them in float32 to compare with.

A case is one launch or more over ragged spans. At full size it is for a GPU; `AttentionCase.small` is the same case for
Triton's interpreter, whose tiles take 16 keys instead of 128: contexts of 1/64, a quarter of the heads, and still more
than two turns without a mask and several parts of a context.

Nothing that may not be read is a number: slots beyond a context and left of a window hold NaN, and the entries of a
block table there point nowhere.
"""

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout

Spans = tuple[tuple[int, int], ...]
"""(new tokens, tokens in all) of each."""

SHRINK = 64
"""By this a context is shorter in a small case."""
LEAST_WINDOW = 64
"""Of a small case: some turns of 16 keys that all rows see."""
GARBAGE = 10**8
"""An id of no block."""
SOFT_CAP = 3.0
"""Scores are about 2 in size."""
MAX_SCORES = 1 << 26
"""The most scores at once that the reference holds: 256 MiB."""

RAGGED = ((1, 8192), (1, 1024), (1, 4097), (1, 1), (1, 6000), (1, 2048), (1, 130), (1, 7777))
SPANS: dict[str, Spans] = {
    "decode": RAGGED,
    "decode alone": ((1, 8192),),
    "prefill": ((1500, 1500), (2, 2), (4096, 4096), (333, 333)),
    "chunk": ((512, 8192), (2048, 4096), (100, 6000)),
    "short chunk": ((16, 8192),),
    "mixed": ((1, 8192), (300, 2048), (1, 1), (1, 4000), (1024, 1024), (2, 3000)),
}


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """`spans` is a key of `SPANS`; `num_spare_blocks` stand before all that are used, so that ids are high.

    `cache` is 'model' (the dtype of the queries) or 'fp8', with a scale per head. `has_extras`: a soft cap and sinks.
    """

    spans: str
    dtype: torch.dtype = torch.bfloat16
    cache: str = "model"
    head_size: int = 128
    heads: tuple[int, int] = (32, 8)
    window: int | None = None
    block_size: int = 16
    has_extras: bool = False
    is_invariant: bool = False
    num_spare_blocks: int = 0
    shrink: int = 1

    @property
    def name(self) -> str:
        words = [self.spans, str(self.dtype).removeprefix("torch."), f"heads {self.heads[0]}/{self.heads[1]}"]
        words.append(f"D {self.head_size}")
        words += ["fp8 cache"] if self.cache == "fp8" else []
        words += [f"window {self.window}"] if self.window else []
        words += [f"blocks of {self.block_size}"] if self.block_size != 16 else []
        words += ["soft cap and sinks"] if self.has_extras else []
        words += ["batch-invariant"] if self.is_invariant else []
        words += ["beyond 2^31"] if self.num_spare_blocks else []
        return ", ".join(words)

    @property
    def group(self) -> str:
        """Cases of one group share compiled kernels, so they run in one process."""
        kind = f"{self.dtype} {self.cache} {self.head_size} {self.heads} {self.window} {self.block_size}"
        return f"{kind} {self.has_extras}"

    @property
    def shape(self) -> list[tuple[int, int]]:
        """The spans at this size; a chunk stays one of several tokens, a decode one of one."""

        def shrunk(length: int, least: int) -> int:
            return max(-(-length // self.shrink), min(least, length))

        found = []
        for query_len, context_len in SPANS[self.spans]:
            query = query_len if query_len == 1 else shrunk(query_len, 2)
            found.append((query, query + shrunk(context_len - query_len, 0)))
        return found

    def small(self) -> "AttentionCase":
        """For the interpreter, which rounds to bfloat16 wrongly and has no memory for 2^31 values of 2 bytes."""
        num_q, num_kv = self.heads
        return dataclasses.replace(
            self,
            dtype=torch.float32 if self.dtype == torch.bfloat16 else self.dtype,
            cache="fp8" if self.num_spare_blocks else self.cache,
            heads=(num_q // num_kv * (num_kv // 4), num_kv // 4),
            window=self.window and max(self.window // SHRINK, LEAST_WINDOW),
            num_spare_blocks=self.num_spare_blocks * 4,  # of a quarter of the heads
            shrink=SHRINK,
        )


def all_cases() -> list[AttentionCase]:
    """Those of the usual shapes first: what a run does not reach is worth the least."""
    kinds = [kind for kind in SPANS if kind != "mixed"]
    half, e4m3 = {"dtype": torch.float16}, {"cache": "fp8"}
    types: list[dict[str, Any]] = [{}, half, e4m3, e4m3 | half]
    # 2^31 values and more stand before the blocks that are used: 131,072 blocks of 16 x 8 x 128.
    high = {"num_spare_blocks": (1 << 31) // (16 * 8 * 128)}
    cases = [AttentionCase(kind) for kind in SPANS]
    cases += [AttentionCase(kind, **high) for kind in ("decode", "chunk")]
    cases += [AttentionCase(kind, heads=(28, 4)) for kind in kinds]
    cases += [AttentionCase(kind, window=1024) for kind in kinds]
    cases += [AttentionCase(kind, head_size=size, **of) for size in (128, 64) for of in types[1:] for kind in kinds]
    cases += [AttentionCase(kind, head_size=64) for kind in kinds]
    cases += [AttentionCase("mixed", is_invariant=True), AttentionCase("mixed", head_size=64, is_invariant=True)]
    cases += [AttentionCase(kind, head_size=256, **of) for of in types for kind in ("decode", "prefill", "short chunk")]
    cases += [AttentionCase(kind, head_size=512, heads=(16, 8)) for kind in ("decode", "prefill")]
    capped = {"has_extras": True, "window": 1024, "head_size": 64}
    cases += [AttentionCase(kind, **capped) for kind in ("decode", "prefill", "short chunk")]
    cases += [AttentionCase("mixed", is_invariant=True, **capped)]
    cases += [AttentionCase(kind, block_size=size) for size in (64, 128) for kind in ("decode", "chunk")]
    return list(dict.fromkeys(cases))


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """A case's data on a device: what a launch takes."""

    q: Tensor  # [T, Hq, D]
    cache: LayerCache
    layout: AttentionLayout
    slots: list[Tensor]  # per span: of the keys from its first visible one on
    scores: CausalScores

    def prepared(self, semaphores_per_span: int) -> DeviceLayout:
        return DeviceLayout.of(self.layout, self.q.device, torch.int32, semaphores_per_span)


def new_step(case: AttentionCase, device: torch.device, seed: int = 0) -> AttentionStep:
    """Scattered blocks of random content. Queries are twice as long as keys, so that weights differ much."""
    generator = torch.Generator(device).manual_seed(seed)
    num_q, num_kv = case.heads
    shape = case.shape
    num_needed = [-(-context_len // case.block_size) for _, context_len in shape]
    ids = list(range(case.num_spare_blocks, case.num_spare_blocks + sum(num_needed) + 3))
    random.Random(seed).shuffle(ids)
    dims = (case.num_spare_blocks + sum(num_needed) + 3, case.block_size, num_kv, case.head_size)
    dtype = torch.float8_e4m3fn if case.cache == "fp8" else case.dtype
    sides = [torch.empty(dims, dtype=dtype, device=device) for _ in "kv"]
    for side in sides:  # the spare ones may be any memory: at 4 GiB each they are left alone
        side[case.num_spare_blocks :].view(torch.uint8).fill_(0x7F if dtype.itemsize == 1 else 0xFF)  # NaN
    tables = torch.full((len(shape), max(num_needed) + 2), GARBAGE, dtype=torch.int64)
    slots, written = [], []
    for span, (query_len, context_len) in enumerate(shape):
        blocks = torch.tensor([ids.pop() for _ in range(num_needed[span])])
        positions = torch.arange(context_len)
        places = blocks[positions // case.block_size] * case.block_size + positions % case.block_size
        first = 0 if case.window is None else max(context_len - query_len + 1 - case.window, 0)
        tables[span, : len(blocks)] = blocks
        tables[span, : first // case.block_size] = -GARBAGE
        slots.append(places[first:].to(device))
        written.append(places[-query_len:])
        for side in sides:
            rows = torch.randn(context_len - first, num_kv, case.head_size, device=device, generator=generator)
            side.view(torch.uint8).view(-1, num_kv, case.head_size * dtype.itemsize)[slots[-1]] = rows.to(dtype).view(
                torch.uint8
            )
    scales = [torch.linspace(0.5, 2.0, num_kv, device=device) for _ in "kv"] if case.cache == "fp8" else []
    lens = [list(found) for found in zip(*shape, strict=True)]
    layout = AttentionLayout(*lens, tables, torch.cat(written).to(device), case.block_size, case.window)
    q = 2 * torch.randn(layout.num_tokens, num_q, case.head_size, device=device, generator=generator)
    cap, sinks = (SOFT_CAP, torch.linspace(-2.0, 4.0, num_q, device=device)) if case.has_extras else (None, None)
    scores = CausalScores(case.head_size**-0.5, cap, sinks)
    return AttentionStep(q.to(case.dtype), LayerCache(*sides, *scales), layout, slots, scores)


def expected_of(step: AttentionStep) -> Tensor:
    """In float32, one key/value head and some rows at a time, so that memory is bounded. `[T, Hq, D]`."""
    layout, cache = step.layout, step.cache
    out = torch.empty(step.q.shape, dtype=torch.float32, device=step.q.device)
    group = step.q.shape[1] // cache.num_kv_heads
    first_row = 0
    for query_len, context_len, slots in zip(layout.query_lens, layout.context_lens, step.slots, strict=True):
        positions = torch.arange(context_len - len(slots), context_len, device=out.device)
        num_rows = max(1, MAX_SCORES // (group * len(slots)))
        for head in range(cache.num_kv_heads):
            keys, values = (rows_of(side, slots, head, scales) for side, scales in sides_of(cache))
            heads = slice(head * group, (head + 1) * group)
            for start in range(0, query_len, num_rows):
                rows = slice(first_row + start, first_row + min(start + num_rows, query_len))
                at = torch.arange(rows.start, rows.stop, device=out.device) - first_row + context_len - query_len
                seen = positions <= at[:, None]
                if layout.window is not None:
                    seen &= positions > at[:, None] - layout.window
                products = step.q[rows, heads].float() @ keys.T  # [n, group, keys]
                out[rows, heads] = weights_of(step.scores, products, seen, heads) @ values
        first_row += query_len
    return out


def weights_of(scores: CausalScores, products: Tensor, seen: Tensor, heads: slice) -> Tensor:
    """Products `[n, group, keys]` of queries and keys -> weights."""
    products = products * scores.scale
    if scores.soft_cap is not None:
        products = scores.soft_cap * torch.tanh(products / scores.soft_cap)
    products = products.masked_fill(~seen[:, None], -torch.inf)
    if scores.sinks is None:
        return products.softmax(-1)
    sinks = scores.sinks[heads].view(1, -1, 1).expand(len(products), -1, 1)
    return torch.cat((products, sinks), dim=-1).softmax(-1)[..., :-1]


def sides_of(cache: LayerCache) -> tuple[tuple[Tensor, Tensor | None], ...]:
    return (cache.key, cache.key_scales), (cache.value, cache.value_scales)


def rows_of(side: Tensor, slots: Tensor, head: int, scales: Tensor | None) -> Tensor:
    """`[keys, D]` float32 of one head."""
    rows = side.view(-1, *side.shape[2:])
    found = rows.view(torch.uint8)[slots, head].view(side.dtype) if side.dtype.itemsize == 1 else rows[slots, head]
    return found.float() if scales is None else found.float() * scales[head]


def worst_row(actual: Tensor, expected: Tensor) -> float:
    """||actual - expected|| / ||expected|| of the worst row and head; infinite if something is no number."""
    if not actual.isfinite().all():
        return float("inf")
    return ((actual.float() - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()
