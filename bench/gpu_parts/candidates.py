"""The tiles that searches on a GPU time beside the shipped ones. Loads Triton."""

from lullm.ops.triton.tile import DecodeTile, FewRowsTile, PrefillTile

DECODE_CANDIDATES = [
    DecodeTile(block_keys, num_warps, num_stages, min_split_keys)
    for block_keys in (32, 64, 128)
    for num_warps in (2, 4)
    for num_stages in (3, 5)  # 4 equals 3, and 6 equals 5: one buffer of keys and values, or two
    for min_split_keys in (64, 128, 256)
    if block_keys < 128 or num_warps > 2  # spills
]
PREFILL_CANDIDATES = [
    PrefillTile(block_rows, block_keys, num_warps, num_stages)
    for block_rows in (64, 128)
    for block_keys in (32, 64, 128)
    for num_warps in (4, 8)
    for num_stages in (2, 3)
]
FEW_ROWS_CANDIDATES = [
    FewRowsTile(block_outputs, block_inputs, num_warps)
    for block_outputs, block_inputs, num_warps in (
        (2, 512, 4), (4, 512, 4), (8, 512, 4), (2, 1024, 4), (4, 1024, 4), (8, 1024, 8), (2, 2048, 4), (4, 2048, 8),
        (4, 256, 2), (4, 512, 2),
    )
]  # fmt: skip
