"""The shipped configurations of the kernels: plain data, chosen by shape and never searched at start.

They are computed from the sizes of registers and shared memory of compute capability 9.0 (64 KiB of registers per 4
warps at full use, 227 KiB of shared memory per multiprocessor), 8.0 and 10.0, and were compiled for them. An H100 and
an H200 have run those of 9.0 (docs/gpu.md). The winners of bench/gpu_tiles.py belong into `_DECODE` and `_PREFILL`.
"""

import dataclasses
import functools
from dataclasses import dataclass

import torch

from lullm.ops.triton.device import IS_INTERPRETED
from lullm.units import next_power_of_2

ACTIVATION_BLOCK = 1024
"""Outputs of the gated activation per program."""

ROPE_HEADS = 8
"""Heads per program of `rope_and_cache`, at most."""

COPY_WORDS = 2048
"""Words of 8 bytes per program and turn of a block copy."""

HOST_COPY_PROGRAMS = 8
"""Programs of a copy over the bus. They keep 128 KiB in flight; 55 GB/s at a latency of 2 us need 110. Beside other
kernels each takes a whole multiprocessor, since the registers of a prefill or of cuBLAS leave no room: 32 took a
quarter of them.
"""

SAMPLING_BLOCK = 1024 if IS_INTERPRETED else 8192
"""Logits per program of a draw's first and last launch, and per turn of the second: a multiple of its chunks of 512."""

SAMPLING_ROOM = 64 if IS_INTERPRETED else 4096
"""Candidates per row that are copied and searched separately. A row with more of them is searched as a whole."""

PART_WARPS = 8
LIMIT_WARPS = 16


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """Decode attention: keys per turn, and the fewest keys worth a split."""

    block_keys: int
    num_warps: int
    num_stages: int
    min_split_keys: int = 256


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """Prefill attention: rows (query heads of one key/value head, over some tokens), keys per turn, and the fewest keys
    worth a split."""

    block_rows: int
    block_keys: int
    num_warps: int
    num_stages: int
    min_split_keys: int = 512


PROGRAMS_PER_MULTIPROCESSOR = 4
"""Programs of decode attention to aim at by splits: three or four run at a time."""

# By (architecture, bytes of a cached value, the head size's power of two); sizes below 64 count as 64.
_DECODE = {
    ("sm90", 2, 64): DecodeTile(128, 4, 5),
    ("sm90", 2, 128): DecodeTile(64, 2, 3, min_split_keys=64),  # the fastest on an H100
    ("sm90", 2, 256): DecodeTile(32, 4, 5),
    ("sm90", 2, 512): DecodeTile(16, 4, 5),
    ("sm90", 1, 64): DecodeTile(128, 4, 5),
    ("sm90", 1, 128): DecodeTile(128, 4, 5),
    ("sm90", 1, 256): DecodeTile(64, 4, 5),
    ("sm90", 4, 64): DecodeTile(32, 4, 2),
    ("sm90", 4, 128): DecodeTile(16, 4, 2),
    ("sm90", 4, 256): DecodeTile(16, 4, 2),
    # A100: 164 KiB of shared memory. Four programs, or two, each with two buffers: 128 KiB are under way.
    ("sm80", 2, 64): DecodeTile(64, 4, 5),
    ("sm80", 2, 128): DecodeTile(32, 4, 5),
    ("sm80", 2, 256): DecodeTile(32, 4, 5),
    # B200: the compiler reports the same as for 9.0.
    ("sm100", 2, 64): DecodeTile(128, 4, 5),
    ("sm100", 2, 128): DecodeTile(64, 4, 5),
    ("sm100", 2, 256): DecodeTile(32, 4, 5),
    ("sm100", 2, 512): DecodeTile(16, 4, 5),
    ("sm100", 1, 64): DecodeTile(128, 4, 5),
    ("sm100", 1, 128): DecodeTile(128, 4, 5),
    ("sm100", 1, 256): DecodeTile(64, 4, 5),
}
_PREFILL = {
    ("sm90", 2, 64): PrefillTile(128, 128, 8, 3),
    ("sm90", 2, 128): PrefillTile(128, 128, 8, 3),
    ("sm90", 2, 256): PrefillTile(128, 32, 8, 2),
    ("sm90", 2, 512): PrefillTile(32, 32, 8, 2),
    ("sm90", 1, 64): PrefillTile(128, 64, 8, 3),
    ("sm90", 1, 128): PrefillTile(128, 64, 8, 3),
    ("sm90", 1, 256): PrefillTile(64, 32, 8, 2),
    ("sm90", 4, 64): PrefillTile(32, 32, 8, 2),
    ("sm90", 4, 128): PrefillTile(32, 16, 8, 2),
    ("sm90", 4, 256): PrefillTile(32, 16, 8, 2),
    ("sm80", 2, 64): PrefillTile(128, 64, 8, 3),
    ("sm80", 2, 128): PrefillTile(64, 32, 4, 3),  # two programs at a time; more rows spill, or run alone
    ("sm80", 2, 256): PrefillTile(64, 32, 8, 2),
    ("sm100", 2, 64): PrefillTile(128, 128, 8, 3),
    ("sm100", 2, 128): PrefillTile(128, 128, 8, 3),
    ("sm100", 2, 256): PrefillTile(128, 32, 8, 2),
    ("sm100", 2, 512): PrefillTile(32, 32, 8, 2),
    ("sm100", 1, 64): PrefillTile(128, 64, 8, 3),
    ("sm100", 1, 128): PrefillTile(128, 64, 8, 3),
    ("sm100", 1, 256): PrefillTile(64, 32, 8, 2),
}
# Elsewhere shared memory may be as small as 64 KiB.
_MUTUAL = PrefillTile(64, 64, 4, 3)
_SMALL_DECODE = DecodeTile(16, 4, 2)
_SMALL_PREFILL = PrefillTile(32, 16, 4, 2)
_INTERPRETED_DECODE = DecodeTile(16, 1, 1, min_split_keys=16)
_INTERPRETED_PREFILL = PrefillTile(16, 16, 1, 1, min_split_keys=32)


@functools.cache
def decode_tile(cache_dtype: torch.dtype, head_size: int) -> DecodeTile:
    if IS_INTERPRETED:
        return _INTERPRETED_DECODE
    return _DECODE.get(_key(cache_dtype, head_size), _SMALL_DECODE)


@functools.cache
def prefill_tile(cache_dtype: torch.dtype, head_size: int) -> PrefillTile:
    if IS_INTERPRETED:
        return _INTERPRETED_PREFILL
    return _PREFILL.get(_key(cache_dtype, head_size), _SMALL_PREFILL)


@functools.cache
def mutual_tile(dtype: torch.dtype, head_size: int) -> PrefillTile:
    """For rows that see each other. Texts are short, so tiles have few rows, and two programs run at a time."""
    shipped = prefill_tile(dtype, head_size)
    is_large = dtype.itemsize == 2 and shipped.block_keys > _MUTUAL.block_keys
    return _MUTUAL if is_large and not IS_INTERPRETED else shipped


def split_tile(tile: PrefillTile) -> PrefillTile:
    """The tile of a launch with split keys: few tokens, since adding up the parts takes registers, too."""
    if tile.block_rows < 64:
        return tile
    return dataclasses.replace(tile, block_rows=tile.block_rows // 2)


@functools.cache
def invariant_tile(cache_dtype: torch.dtype, head_size: int) -> PrefillTile:
    """The tile for chunks of prompts and for decodes: fewer rows, since a decode fills only one group of them."""
    tile = prefill_tile(cache_dtype, head_size)
    return split_tile(tile) if tile.block_rows > 64 else tile


@dataclass(frozen=True, slots=True)
class LinearTile:
    """Products that do not depend on the number of rows: rows, outputs, and inputs per iteration."""

    block_rows: int
    block_outputs: int
    block_inputs: int
    num_warps: int
    num_stages: int


def linear_tile(dtype: torch.dtype) -> LinearTile:
    """The tile of a type. Another number of rows per tile could mean another instruction and order of sums."""
    if IS_INTERPRETED:
        return LinearTile(16, 32, 32, 1, 1)
    if dtype == torch.float32:
        return LinearTile(32, 64, 32, 4, 2)
    return LinearTile(64, 128, 64, 4, 3)  # 72 KiB of shared memory


@dataclass(frozen=True, slots=True)
class FewRowsTile:
    """Products of one or two rows: outputs per program, and inputs per iteration."""

    block_outputs: int
    block_inputs: int
    num_warps: int


_MANY_OUTPUTS = 2048
"""Below, four outputs a program make fewer programs than 132 multiprocessors can hide latencies with."""


def few_rows_tile(num_outputs: int, num_inputs: int, num_rows: int) -> FewRowsTile:
    """Interpreted: few programs, whose number sets the time. Long rows: an H200's fastest, by `make gpu-check`."""
    if IS_INTERPRETED:
        block_inputs = min(next_power_of_2(num_inputs), 1 << 12)
        return FewRowsTile(max(2, min(next_power_of_2(num_outputs), (1 << 20) // block_inputs)), block_inputs, 1)
    if num_rows == 1 and num_inputs > 2048:
        return FewRowsTile(2, 2048, 4)
    return FewRowsTile(2 if num_outputs <= _MANY_OUTPUTS else 4, 512, 4)


def expert_tiles(dtype: torch.dtype) -> tuple[LinearTile, LinearTile]:
    """The tiles for products of experts: with few rows each, whose time is one read of the weights, and with many."""
    if IS_INTERPRETED:
        return LinearTile(16, 32, 32, 1, 1), LinearTile(32, 32, 64, 1, 1)
    if dtype == torch.float32:
        return LinearTile(16, 32, 32, 4, 2), linear_tile(dtype)
    return LinearTile(16, 64, 128, 4, 4), linear_tile(dtype)  # 60 KiB of shared memory: three programs at a time


def _key(cache_dtype: torch.dtype, head_size: int) -> tuple[str, int, int]:
    major, minor = (
        torch.cuda.get_device_capability()
    )  # 9.0 is Hopper, and AMD's gfx90a, with a third of the shared memory
    return (
        f"{'gfx' if torch.version.hip else 'sm'}{major}{minor}",
        cache_dtype.itemsize,
        max(next_power_of_2(head_size), 64),
    )


def num_row_warps(block: int) -> int:
    """Warps for a program that holds a row of `block` values: 8 to 32 of them per thread."""
    return 4 if block <= 2048 else 8 if block <= 8192 else 16
