"""A draw's first two launches: the best logit of each chunk, and then a row's best and its threshold (see `tokens`)."""

import triton
import triton.language as tl

from lullm.ops.triton.launch import Kernel
from lullm.ops.triton.overlap import wait_for_inputs


@triton.jit
def distance(logits, best, temperature):
    """The distances of `logits` from `best`, divided by the temperature: float32, at least 0."""
    return tl.div_rn(best - logits, temperature)


@triton.jit
def bits_of(distances):
    return tl.abs(distances).to(tl.int32, bitcast=True)


@triton.jit
def _weigh(ptr, size, best, temperature, limit, IS_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The number of logits whose distance has bits up to `limit`, or the sum of their exp(-distance), as float64."""
    lanes = tl.arange(0, BLOCK)
    weights = tl.zeros([BLOCK], tl.float32)  # summed per lane first: no barrier in the loop
    for start in range(0, size, BLOCK):
        logits = tl.load(ptr + start + lanes, mask=start + lanes < size, other=float("-inf"))
        distances = distance(logits, best, temperature)
        kept = (bits_of(distances) <= limit) & (logits != float("-inf"))
        weights += tl.where(kept, tl.exp(-distances) if IS_MASS else 1.0, 0.0)
    return tl.sum(weights.to(tl.float64), 0)


@triton.jit
def _find_limit(ptr, size, best, temperature, highest, target, IS_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The least bits in 0..`highest` whose weight reaches `target`; `highest` if no smaller bits do."""
    low = tl.zeros([], tl.int32)
    high = highest
    while low < high:
        middle = low + (high - low) // 2
        weight = _weigh(ptr, size, best, temperature, middle, IS_MASS, BLOCK)
        high = tl.where(weight >= target, middle, high)
        low = tl.where(weight >= target, low, middle + 1)
        if not IS_MASS:
            low = tl.where(weight == target, high, low)  # any limit between two neighbours keeps the same
    return low


@triton.jit
def _find_limits(ptr, size, best, temperature, highest, top_k, top_p, total, VOCAB_SIZE: tl.constexpr,
                 BLOCK: tl.constexpr):  # fmt: skip
    """The limit of top_k and then top_p among the logits at `ptr`; `total` is the row's mass, for use without top_k."""
    limit = highest
    if top_k < VOCAB_SIZE:
        limit = _find_limit(ptr, size, best, temperature, limit, top_k.to(tl.float64), False, BLOCK)
        total = _weigh(ptr, size, best, temperature, limit, True, BLOCK)
    if top_p < 1.0:
        limit = _find_limit(ptr, size, best, temperature, limit, top_p * total, True, BLOCK)
    return limit


@triton.jit
def _scan_kernel(
    chunks_ptr,  # [N, NUM_CHUNKS + ROOM] float32: the best of each chunk; +inf: one that holds NaN or +inf
    logits_ptr,  # [N, V] float32
    row_stride,
    VOCAB_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,  # per program: whole chunks
    OVERLAPS: tl.constexpr,
):
    wait_for_inputs(OVERLAPS)
    TURN: tl.constexpr = BLOCK // CHUNK
    row = tl.program_id(1).to(tl.int64)
    chunks = tl.program_id(0) * TURN + tl.arange(0, TURN)
    ids = chunks[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    logits = tl.load(logits_ptr + row * row_stride + ids, mask=ids < VOCAB_SIZE, other=float("-inf"))
    best = tl.max(tl.where(logits != logits, float("inf"), logits), 1)
    tl.store(chunks_ptr + row * (NUM_CHUNKS + ROOM) + chunks, best, mask=chunks < NUM_CHUNKS)


@triton.jit(do_not_specialize=["num_rows"])
def _limit_kernel(
    tokens_ptr,  # [N] int64: -1 for broken rows, the best for others
    state_ptr,  # [4, N] int32: bits of the best logit, its id, the bits of the largest distance, parts that have ended
    logits_ptr,  # [N, V] float32
    scratch_ptr,  # [N, NUM_CHUNKS + ROOM] float32
    temperatures_ptr,
    top_k_ptr,
    top_p_ptr,
    row_stride,
    num_rows,
    VOCAB_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,  # a power of two, at least NUM_CHUNKS
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,  # per turn
    OVERLAPS: tl.constexpr,
):
    wait_for_inputs(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * row_stride
    chunks_ptr = scratch_ptr + row * (NUM_CHUNKS + ROOM)
    room_ptr = chunks_ptr + NUM_CHUNKS
    chunks = tl.arange(0, BLOCK_CHUNKS)
    chunk_best = tl.load(chunks_ptr + chunks, mask=chunks < NUM_CHUNKS, other=float("-inf"))
    best = tl.max(chunk_best, 0)
    ids = tl.min(tl.where(chunk_best == best, chunks, BLOCK_CHUNKS), 0) * CHUNK + tl.arange(0, CHUNK)
    in_chunk = tl.load(logits_ptr + ids, mask=ids < VOCAB_SIZE, other=float("-inf"))
    best_id = tl.min(tl.where((in_chunk == best) & (ids < VOCAB_SIZE), ids, 2147483647), 0)
    temperature = tl.load(temperatures_ptr + row)
    is_broken = (best == float("inf")) | (best == float("-inf"))
    is_drawn = (temperature != 0.0) & ~is_broken
    tl.store(tokens_ptr + row, tl.where(is_broken, -1, best_id).to(tl.int64))

    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    limit = tl.full([], 0x7F800000, tl.int32)  # infinity
    if is_drawn & ((top_k < VOCAB_SIZE) | (top_p < 1.0)):
        bound = limit
        total = tl.zeros([], tl.float64)
        if top_k >= VOCAB_SIZE:
            total = _weigh(logits_ptr, VOCAB_SIZE, best, temperature, limit, True, BLOCK)
            bound = _find_limit(chunks_ptr, NUM_CHUNKS, best, temperature, limit, top_p * total, True, BLOCK_CHUNKS)
        elif top_k <= NUM_CHUNKS:
            bound = _find_limit(
                chunks_ptr, NUM_CHUNKS, best, temperature, limit, top_k.to(tl.float64), False, BLOCK_CHUNKS
            )
        num_near = tl.zeros([], tl.int32)
        for start in range(0, VOCAB_SIZE, BLOCK):
            turn_ids = start + tl.arange(0, BLOCK)
            logits = tl.load(logits_ptr + turn_ids, mask=turn_ids < VOCAB_SIZE, other=float("-inf"))
            is_near = (bits_of(distance(logits, best, temperature)) <= bound) & (logits != float("-inf"))
            places = num_near + tl.cumsum(is_near.to(tl.int32), 0) - 1
            tl.store(room_ptr + places, logits, mask=is_near & (places < ROOM))
            num_near += tl.sum(is_near.to(tl.int32), 0)
        tl.debug_barrier()
        if num_near <= ROOM:
            limit = _find_limits(room_ptr, num_near, best, temperature, bound, top_k, top_p, total, VOCAB_SIZE, ROOM)
        else:
            limit = _find_limits(
                logits_ptr, VOCAB_SIZE, best, temperature, bound, top_k, top_p, total, VOCAB_SIZE, BLOCK
            )
    tl.store(state_ptr + row, best.to(tl.int32, bitcast=True))
    tl.store(state_ptr + num_rows + row, best_id)
    tl.store(state_ptr + 2 * num_rows + row, tl.where(is_drawn, limit, -1))
    tl.store(state_ptr + 3 * num_rows + row, 0)


SCAN = Kernel(_scan_kernel)
LIMIT = Kernel(_limit_kernel)
