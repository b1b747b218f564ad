"""Drawing a token per row on the device, without a sort: temperature, top_k, top_p, min_p, the race.

The definitions are those of `sampling.truncation` and `sampling.race`: a truncation is a threshold, and the token with
the largest noise - distance is drawn, the first of equals. One program computes a row:

1. One pass: the best logit and its id (enough for a greedy row), and the best of every chunk of 512.
2. If there is a top_k or top_p: a threshold `distance`, in bits. Distances `(best - logit) / temperature` are not
   negative, so their bit patterns are in order as integers, and 31 bisections find the exact threshold, by counting
   for top_k, by adding up exp(-distance) for top_p. To count few logits, the chunks' best are bisected first: they are
   a part of the row, so their threshold keeps at least the logits that the row's keeps. The logits that pass (a few
   hundred, usually) are copied and bisected again. If they do not fit into the scratch memory, the whole row is
   bisected.
3. One pass for the race. The noise, in float64, is computed only in iterations with a token whose random bits could
   beat the best so far.

A logit of NaN or +inf, or a row of only -inf, gives token -1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lullm.ops.draw_table import DrawTable
from lullm.ops.triton.launch import Kernel
from lullm.ops.triton.overlap import overlap_options, wait_for_inputs
from lullm.ops.triton.tile import SAMPLING_BLOCK, SAMPLING_ROOM, SAMPLING_WARPS
from lullm.units import cdiv, next_power_of_2

_CHUNK = 512
_GOLDEN_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_FACTOR_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_FACTOR_2 = tl.constexpr(0x94D049BB133111EB)
_ROOT_OF_HALF = tl.constexpr(0x3FE6A09E667F3BCD)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _distance(logits, best, temperature):
    """The distances of `logits` from `best`, divided by the temperature: float32, at least 0."""
    return tl.div_rn(best - logits, temperature)


@triton.jit
def _bits(distances):
    return tl.abs(distances).to(tl.int32, bitcast=True)


@triton.jit
def _weigh(ptr, size, best, temperature, limit, IS_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The number of logits whose distance has bits up to `limit`, or the sum of their exp(-distance), as float64."""
    lanes = tl.arange(0, BLOCK)
    weights = tl.zeros([BLOCK], tl.float32)  # summed per lane first: no barrier in the loop
    for start in range(0, size, BLOCK):
        logits = tl.load(ptr + start + lanes, mask=start + lanes < size, other=float("-inf"))
        distances = _distance(logits, best, temperature)
        kept = (_bits(distances) <= limit) & (logits != float("-inf"))
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
def _random_bits(key, ids):
    """See `sampling.race`: the numbers of the SplitMix64 stream that starts at the key, as uint64."""
    bits = key + (ids + 1).to(tl.uint64) * _GOLDEN_GAMMA
    bits = (bits ^ (bits >> 30)) * _FACTOR_1
    bits = (bits ^ (bits >> 27)) * _FACTOR_2
    return bits ^ (bits >> 31)


@triton.jit
def _natural_log(y):
    """See `sampling.race`: the same operations in the same order, in float64."""
    bits = y.to(tl.int64, bitcast=True)
    exponent = (bits - _ROOT_OF_HALF) >> 52
    f = (bits - (exponent << 52)).to(tl.float64, bitcast=True)
    s = (f - 1.0) / (f + 1.0)
    square = s * s
    total = tl.zeros_like(s) + 1 / 17
    for odd in tl.static_range(15, 0, -2):
        total = total * square + 1 / odd
    return exponent.to(tl.float64) * _LN_2 + 2.0 * s * total


@triton.jit
def _score(bits, distances):
    """The Gumbel noise of these random bits less the distances, float64."""
    x = ((bits >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16  # 2**-52
    return -_natural_log(-_natural_log(1.0 - x)) - distances.to(tl.float64)


@triton.jit
def _reach(score):
    """A token can beat this score if the upper 31 random bits are at most its exp(-distance) times this.

    It is 0.1 % more than 2**31 * exp(-score), since weights and bits are rounded.
    """
    return tl.exp((-score).to(tl.float32)) * 2149631131.648


@triton.jit
def _draw_kernel(
    tokens_ptr,  # [N] int64
    logits_ptr,  # [N, V] float32
    scratch_ptr,  # [N, NUM_CHUNKS + ROOM] float32
    temperatures_ptr,
    top_k_ptr,
    top_p_ptr,
    floors_ptr,
    keys_ptr,  # [N] int64
    row_stride,
    VOCAB_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,  # a power of two, at least NUM_CHUNKS
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,  # per turn: whole chunks
    WRITES_LOGITS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_inputs(OVERLAPS)
    TURN: tl.constexpr = BLOCK // CHUNK
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * row_stride
    chunks_ptr = scratch_ptr + row * (NUM_CHUNKS + ROOM)
    room_ptr = chunks_ptr + NUM_CHUNKS
    turn_chunks = tl.arange(0, TURN)
    chunk_places = turn_chunks[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]

    best = tl.full([], float("-inf"), tl.float32)
    best_id = tl.zeros([], tl.int32)
    num_broken = tl.zeros([], tl.int32)
    for chunk in range(0, NUM_CHUNKS, TURN):
        ids = chunk * CHUNK + chunk_places
        logits = tl.load(logits_ptr + ids, mask=ids < VOCAB_SIZE, other=float("-inf"))
        num_broken += tl.sum(tl.sum(((logits != logits) | (logits == float("inf"))).to(tl.int32), 1), 0)
        chunk_best = tl.max(logits, 1)
        tl.store(chunks_ptr + chunk + turn_chunks, chunk_best, mask=chunk + turn_chunks < NUM_CHUNKS)
        turn_best = tl.max(chunk_best, 0)
        turn_id = tl.min(tl.min(tl.where(logits == turn_best, ids, 2147483647), 1), 0)
        best_id = tl.where(turn_best > best, turn_id, best_id)
        best = tl.maximum(best, turn_best)
    tl.debug_barrier()  # the chunks' best are written before they are read

    temperature = tl.load(temperatures_ptr + row)
    is_broken = (num_broken > 0) | (best == float("-inf"))
    if is_broken | (temperature == 0.0):
        tl.store(tokens_ptr + row, tl.where(is_broken, -1, best_id).to(tl.int64))
        return

    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    floor = -tl.load(floors_ptr + row)
    limit = tl.full([], 0x7F800000, tl.int32)  # infinity
    if (top_k < VOCAB_SIZE) | (top_p < 1.0):
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
            ids = start + tl.arange(0, BLOCK)
            logits = tl.load(logits_ptr + ids, mask=ids < VOCAB_SIZE, other=float("-inf"))
            is_near = (_bits(_distance(logits, best, temperature)) <= bound) & (logits != float("-inf"))
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

    key = tl.load(keys_ptr + row).to(tl.uint64, bitcast=True)
    token = best_id
    lead = _score(_random_bits(key, best_id), tl.zeros([], tl.float32))
    reach = _reach(lead)
    RUNNERS: tl.constexpr = BLOCK // 4  # numbers of 64 bits take registers
    for start in range(0, VOCAB_SIZE, RUNNERS):
        ids = start + tl.arange(0, RUNNERS)
        logits = tl.load(logits_ptr + ids, mask=ids < VOCAB_SIZE, other=float("-inf"))
        distances = _distance(logits, best, temperature)
        bits = _random_bits(key, ids)
        is_near = (bits >> 33).to(tl.float32) <= tl.exp(-distances) * reach
        is_near = is_near & (_bits(distances) <= limit) & (distances <= floor) & (logits != float("-inf"))
        if tl.max(is_near.to(tl.int32), 0) > 0:
            scores = tl.where(is_near, _score(bits, distances), float("-inf"))
            turn_lead = tl.max(scores, 0)
            turn_token = tl.min(tl.where(scores == turn_lead, ids, 2147483647), 0)
            is_ahead = (turn_lead > lead) | ((turn_lead == lead) & (turn_token < token))
            token = tl.where(is_ahead, turn_token, token)
            lead = tl.maximum(lead, turn_lead)
            reach = _reach(lead)
    tl.store(tokens_ptr + row, token.to(tl.int64))
    if WRITES_LOGITS:
        tl.debug_barrier()  # all have read the row
        for start in range(0, VOCAB_SIZE, BLOCK):
            all_ids = start + tl.arange(0, BLOCK)
            in_row = all_ids < VOCAB_SIZE
            away = _distance(tl.load(logits_ptr + all_ids, mask=in_row, other=0.0), best, temperature)
            drawn_from = tl.where((_bits(away) <= limit) & (away <= floor), -away, float("-inf"))
            tl.store(logits_ptr + all_ids, drawn_from, mask=in_row)


DRAW = Kernel(_draw_kernel)


def draw_tokens(logits: Tensor, table: DrawTable, writes_logits: bool = False) -> Tensor:
    """Token ids `[N]` int64, -1 for a row without a token. One launch; does not synchronise.

    Args:
        logits: `[N, V]` float32, after penalties, bias and restrictions.
        writes_logits: write the logits of the draw into rows that are not greedy: `(logit - best) / temperature`, -inf
            for dropped tokens.
    """
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    num_rows, vocab_size = logits.shape
    num_chunks = cdiv(vocab_size, _CHUNK)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    scratch = torch.empty(num_rows * (num_chunks + SAMPLING_ROOM), dtype=torch.float32, device=logits.device)
    if num_rows:
        DRAW[(num_rows,)](
            tokens,
            logits,
            scratch,
            table.temperatures,
            table.top_k,
            table.top_p,
            table.min_p_floors,
            table.keys,
            logits.stride(0),
            VOCAB_SIZE=vocab_size,
            CHUNK=_CHUNK,
            NUM_CHUNKS=num_chunks,
            BLOCK_CHUNKS=next_power_of_2(num_chunks),
            ROOM=SAMPLING_ROOM,
            BLOCK=SAMPLING_BLOCK,
            WRITES_LOGITS=writes_logits,
            **overlap_options(),
            num_warps=SAMPLING_WARPS,
            enable_fp_fusion=False,  # the noise has the same bits everywhere
        )
    return tokens
