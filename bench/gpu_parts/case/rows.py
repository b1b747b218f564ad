"""The kernels that go over rows, and block copies, at production shapes: against float32 and to the bit."""

from collections.abc import Callable

import torch
from torch import Tensor

from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.reference import add_rms_norm as plain_add_rms_norm
from lullm.ops.reference import rope_and_cache as plain_rope_and_cache

HIDDEN, INNER = 4096, 12288
HEADS, HEAD_SIZE, BLOCK_SIZE = (32, 8), 128, 16
NUM_ROWS = (1, 33, 8192)
NUM_EXPERTS, NUM_USED, EXPERT_DIMS = 32, 8, (2048, 768)  # hidden, inner
EXPERT_ROWS = (1, 33, 2048)
MUTUAL_LENS = (1, 300, 64, 65, 7, 128, 512, 3, 1500, 20)
MUTUAL_HEADS = ((64, None), (72, None), (64, 64), (128, 17))
"""(Elements of a head, reach): BERT, SigLIP, ModernBERT, and one that is no multiple of a tile."""


def relative(actual: Tensor, expected: Tensor) -> float:
    return ((actual.float() - expected.float()).norm() / expected.float().norm()).item()


def row_cases(device: torch.device, shrink: int = 1) -> dict[str, Callable[[], float]]:
    """Name -> a function that gives the relative error, infinite where bits had to be equal and are not."""
    found: dict[str, Callable[[], float]] = {}
    for num_rows in NUM_ROWS if shrink == 1 else (1, 5):
        for name, check in (("norm", norm_error), ("activation", activation_error), ("rope and cache", rope_error)):
            found[f"{name}, {num_rows} rows"] = lambda check=check, n=num_rows: check(n, device, shrink)
    for num_rows in EXPERT_ROWS if shrink == 1 else (5,):
        found[f"experts, {num_rows} rows"] = lambda n=num_rows: experts_error(n, device, shrink)
    for num_rows in (1, 2):
        found[f"products, {num_rows} rows"] = lambda n=num_rows: product_error(n, device, shrink)
    for size, reach in MUTUAL_HEADS:
        name = f"rows that see each other, heads of {size}, reach {reach}"
        found[name] = lambda size=size, reach=reach: mutual_error(size, reach, device, shrink)
    found["block copy"] = lambda: copy_error(device, shrink)
    found["writes and copies beyond 2^31"] = lambda: far_error(device, shrink)
    return found


def random(*shape: int, device: torch.device, shrink: int = 1) -> Tensor:
    """bfloat16, or float32 for the interpreter, which rounds to bfloat16 wrongly."""
    generator = torch.Generator(device).manual_seed(sum(shape))
    values = torch.randn(shape, device=device, generator=generator)
    return values.to(torch.bfloat16) if shrink == 1 else values


def norm_error(num_rows: int, device: torch.device, shrink: int) -> float:
    from lullm.ops.triton.elementwise import add_rms_norm

    x, residual = (random(num_rows, HIDDEN // shrink + side, device=device, shrink=shrink)[:, side:] for side in (0, 1))
    weight, residual = random(HIDDEN // shrink, device=device, shrink=shrink), residual.contiguous()
    expected = plain_add_rms_norm(x.float(), (residual.float()), weight.float(), 1e-6)
    actual = add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    return max(relative(a, e) for a, e in zip(actual, expected, strict=True))


def activation_error(num_rows: int, device: torch.device, shrink: int) -> float:
    from lullm.ops.triton.elementwise import silu_mul

    gate_up = random(num_rows, 2 * INNER // shrink, device=device, shrink=shrink)
    gate, up = gate_up.float().chunk(2, -1)
    return relative(silu_mul(gate_up), gate * gate.sigmoid() * up)


def product_error(num_rows: int, device: torch.device, shrink: int) -> float:
    """A product, one with its activation, and logits, for which this many rows have kernels of their own."""
    from lullm.ops.triton import elementwise
    from lullm.ops.triton.product import few_rows

    hidden = (HIDDEN if num_rows == 1 else few_rows.MAX_INPUTS_OF_TWO) // shrink
    inner = INNER // shrink
    x, weight = (random(n, hidden, device=device, shrink=shrink) for n in (num_rows, 2 * inner))
    if x.dtype == torch.float32:
        x, weight = x.half(), weight.half()
    weight *= hidden**-0.5
    assert few_rows.is_served(x, weight)
    expected = x.float() @ weight.float().T
    gate, up = expected.chunk(2, -1)
    pairs = [
        (elementwise.linear(x, weight, None), expected),
        (elementwise.gated_linear(x, weight, None, "silu"), gate * gate.sigmoid() * up),
        (elementwise.logits(x, weight), expected),
    ]
    if shrink > 1:
        pairs = pairs[-1:]  # not rounded to 16 bits, which float32's bound does not allow
    return max(relative(actual, wanted) for actual, wanted in pairs)


def rope_error(num_rows: int, device: torch.device, shrink: int) -> float:
    """Queries and what stands in the cache; a third of the rows has no slot."""
    from lullm.ops.triton.rope_cache import rope_and_cache

    (num_q, num_kv), options = HEADS, {"device": device, "shrink": shrink}
    qkv = random(num_rows, num_q + 2 * num_kv, HEAD_SIZE, **options)
    norm = HeadNorm(random(HEAD_SIZE, **options), random(HEAD_SIZE + 1, **options)[1:], 1e-6)
    angles = 3 * random(num_rows, HEAD_SIZE // 2, **options).float()
    table = torch.cat((angles.cos(), angles.sin()), -1)
    slots = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0)).to(device)
    slots = torch.where(slots % 3 == 2, -1, slots)
    positions = torch.arange(num_rows, device=device).flip(0)
    dims = (-(-num_rows // BLOCK_SIZE), BLOCK_SIZE, num_kv, HEAD_SIZE)
    actual, expected = (LayerCache(*torch.zeros(2, *dims, device=device, dtype=d)) for d in (qkv.dtype, torch.float32))
    q = rope_and_cache(qkv, norm, positions, table, actual, slots)
    plain_norm = HeadNorm(norm.q_weight.float(), norm.k_weight.float(), norm.eps)
    plain_q = plain_rope_and_cache(qkv.float(), plain_norm, positions, table, expected, slots)
    pairs = [(q, plain_q), *zip(actual.tensors, expected.tensors, strict=True)]
    return max(relative(a, e) for a, e in pairs if e.any())


def experts_error(num_rows: int, device: torch.device, shrink: int) -> float:
    """Few rows of each expert, none of some, and many."""
    from lullm.ops.experts.routing import Routes
    from lullm.ops.experts.weights import ExpertSlots, ExpertWeights, Matrices
    from lullm.ops.triton.layer.experts import experts

    (hidden, inner), options = (dim // shrink for dim in EXPERT_DIMS), {"device": device, "shrink": shrink}
    gate_ups = random(NUM_EXPERTS, 2 * inner, hidden, **options) * hidden**-0.5
    downs = random(NUM_EXPERTS, hidden, inner, **options) * inner**-0.5
    x = random(num_rows, hidden, **options)
    scores = random(num_rows, NUM_EXPERTS, **options).float().softmax(-1)
    chosen = scores.topk(NUM_USED).indices.sort(-1).values
    shares = scores.gather(1, chosen)
    expected = torch.zeros(num_rows, hidden, device=device)
    for expert in range(NUM_EXPERTS):
        gate, up = (x.float() @ gate_ups[expert].float().T).chunk(2, -1)
        part = (gate * gate.sigmoid() * up) @ downs[expert].float().T
        expected += part * (shares * (chosen == expert)).sum(-1, keepdim=True)
    numbers = torch.arange(NUM_EXPERTS, device=device)
    slots = ExpertSlots(numbers, torch.zeros_like(numbers))
    layouts = [None] * NUM_EXPERTS
    weights = ExpertWeights(
        Matrices(gate_ups.unbind(), None, layouts), Matrices(downs.unbind(), None, layouts), "silu", slots
    )
    actual = experts(x, Routes(chosen, shares), weights, None, None)
    is_counted = torch.equal(slots.load, chosen.flatten().bincount(minlength=NUM_EXPERTS))
    return relative(actual, expected) if is_counted else float("inf")


def mutual_error(head_size: int, reach: int | None, device: torch.device, shrink: int) -> float:
    from lullm.ops.attention_layout import MutualScores
    from lullm.ops.torch_cpu import mutual_attention as plain_mutual_attention
    from lullm.ops.triton.layer.mutual import mutual_attention

    lens = [-(-length // shrink) for length in MUTUAL_LENS]
    q, k, v = random(sum(lens), 36, head_size, device=device, shrink=shrink).chunk(3, dim=1)
    scores = MutualScores(head_size**-0.5, reach)
    expected = plain_mutual_attention(q.float(), k.float(), v.float(), lens, scores)
    return relative(mutual_attention(q, k, v, lens, scores), expected)


def copy_error(device: torch.device, shrink: int) -> float:
    from lullm.ops.triton.block_copy import copy_blocks

    dims = (64, BLOCK_SIZE, HEADS[1], HEAD_SIZE // shrink)
    caches = [LayerCache(*(random(*dims, device=device, shrink=shrink) for _ in "kv")) for _ in range(36 // shrink + 1)]
    expected = [side.clone() for cache in caches for side in cache.tensors]
    pairs = [(i, 63 - i) for i in range(0, 32, 3)]
    for side in expected:
        for source, target in pairs:
            side[target] = side[source]
    copy_blocks(caches, pairs)
    actual = [side for cache in caches for side in cache.tensors]
    return 0.0 if all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True)) else float("inf")


def far_error(device: torch.device, shrink: int) -> float:
    """Rows written behind 2^31 values, and copied to blocks behind them."""
    from lullm.ops.triton.block_copy import copy_blocks
    from lullm.ops.triton.rope_cache import write_cache

    num_kv = HEADS[1]
    num_spare = (1 << 31) // (BLOCK_SIZE * num_kv * HEAD_SIZE) + 1
    dtype = torch.bfloat16 if shrink == 1 else torch.float8_e4m3fn  # the host's memory is used where it is touched
    cache = LayerCache(*(torch.empty(num_spare + 4, BLOCK_SIZE, num_kv, HEAD_SIZE, dtype=dtype, device=device)
                         for _ in "kv"))  # fmt: skip
    kv = random(5, 2 * num_kv, HEAD_SIZE, device=device, shrink=shrink)
    first = num_spare * BLOCK_SIZE
    write_cache(kv, cache, torch.tensor([first + 3, -1, first, first + 15, first + 7], device=device))
    copy_blocks([cache], [(num_spare, num_spare + 3)])
    for side, rows in zip(cache.tensors, kv.split(num_kv, 1), strict=True):
        for block in (num_spare, num_spare + 3):
            written = side[block][[3, 0, 15, 7]].float()
            if not torch.equal(written, rows[[0, 2, 3, 4]].to(dtype).float()):
                return float("inf")
    return 0.0
