"""A draw's last launch: noise for what a row keeps, and the token that is ahead (see `tokens`)."""

import triton
import triton.language as tl

from lullm.ops.triton.draw.threshold import bits_of, distance
from lullm.ops.triton.launch import Kernel
from lullm.ops.triton.overlap import wait_for_inputs

_GOLDEN_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_FACTOR_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_FACTOR_2 = tl.constexpr(0x94D049BB133111EB)
_ROOT_OF_HALF = tl.constexpr(0x3FE6A09E667F3BCD)
_LN_2 = tl.constexpr(0.6931471805599453)


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


@triton.jit(do_not_specialize=["num_rows"])
def _race_kernel(
    tokens_ptr,  # [N] int64
    state_ptr,  # [4, N] int32
    runners_ptr,  # [N, 2, NUM_PARTS] float64: the best scores of the parts, and their ids
    logits_ptr,  # [N, V] float32
    temperatures_ptr,
    floors_ptr,
    keys_ptr,  # [N] int64
    row_stride,
    num_rows,
    VOCAB_SIZE: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,  # a power of two, at least NUM_PARTS
    BLOCK: tl.constexpr,  # per program
    WRITES_LOGITS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_inputs(OVERLAPS)
    part = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    limit = tl.load(state_ptr + 2 * num_rows + row)
    if limit < 0:
        return
    logits_ptr += row * row_stride
    best = tl.load(state_ptr + row).to(tl.float32, bitcast=True)
    token = tl.load(state_ptr + num_rows + row)
    temperature = tl.load(temperatures_ptr + row)
    floor = -tl.load(floors_ptr + row)
    key = tl.load(keys_ptr + row).to(tl.uint64, bitcast=True)
    lead = _score(_random_bits(key, token), tl.zeros([], tl.float32))
    reach = _reach(lead)
    RUNNERS: tl.constexpr = BLOCK // 4  # numbers of 64 bits take registers
    for turn in range(0, 4):
        ids = part * BLOCK + turn * RUNNERS + tl.arange(0, RUNNERS)
        logits = tl.load(logits_ptr + ids, mask=ids < VOCAB_SIZE, other=float("-inf"))
        distances = distance(logits, best, temperature)
        bits = _random_bits(key, ids)
        is_near = (bits >> 33).to(tl.float32) <= tl.exp(-distances) * reach
        is_near = is_near & (bits_of(distances) <= limit) & (distances <= floor) & (logits != float("-inf"))
        if tl.max(is_near.to(tl.int32), 0) > 0:
            scores = tl.where(is_near, _score(bits, distances), float("-inf"))
            turn_lead = tl.max(scores, 0)
            turn_token = tl.min(tl.where(scores == turn_lead, ids, 2147483647), 0)
            is_ahead = (turn_lead > lead) | ((turn_lead == lead) & (turn_token < token))
            token = tl.where(is_ahead, turn_token, token)
            lead = tl.maximum(lead, turn_lead)
            reach = _reach(lead)
    if WRITES_LOGITS:
        tl.debug_barrier()  # all threads have read their part of the row
        all_ids = part * BLOCK + tl.arange(0, BLOCK)
        in_row = all_ids < VOCAB_SIZE
        away = distance(tl.load(logits_ptr + all_ids, mask=in_row, other=0.0), best, temperature)
        drawn_from = tl.where((bits_of(away) <= limit) & (away <= floor), -away, float("-inf"))
        tl.store(logits_ptr + all_ids, drawn_from, mask=in_row)
    runners_ptr += row * (2 * NUM_PARTS)
    tl.store(runners_ptr + part, lead)
    tl.store(runners_ptr + NUM_PARTS + part, token.to(tl.float64))
    tl.debug_barrier()  # the part is written before it is counted
    if tl.atomic_add(state_ptr + 3 * num_rows + row, 1, sem="acq_rel") == NUM_PARTS - 1:
        parts = tl.arange(0, BLOCK_PARTS)
        is_part = parts < NUM_PARTS
        leads = tl.load(runners_ptr + parts, mask=is_part, other=float("-inf"), cache_modifier=".cg")
        runners = tl.load(runners_ptr + NUM_PARTS + parts, mask=is_part, other=2147483647.0, cache_modifier=".cg")
        first = tl.min(tl.where(leads == tl.max(leads, 0), runners, 2147483647.0), 0)
        tl.store(tokens_ptr + row, first.to(tl.int64))


RACE = Kernel(_race_kernel)
