"""Drawing a token per row on the device, without a sort: temperature, top_k, top_p, min_p, the race.

The definitions are those of `sampling.truncation` and `sampling.race`: a truncation is a threshold, and the token with
the largest noise - distance is drawn, the first of equals. Three launches, since few rows must use many
multiprocessors, and each stage needs the whole row's result of the one before:

1. `threshold._scan_kernel`, a program per turn of a row: the best logit of every chunk of 512.
2. `threshold._limit_kernel`, a program per row: the best logit and its id (enough for a greedy row). If there is a
   top_k or top_p: a threshold `distance`, in bits. Distances `(best - logit) / temperature` are not negative, so their
   bit patterns are in order as integers, and 31 bisections find the exact threshold, by counting for top_k, by adding
   up exp(-distance) for top_p. To count few logits, the chunks' best are bisected first: they are a part of the row, so
   their threshold keeps at least the logits that the row's keeps. The logits that pass (a few hundred, usually) are
   copied and bisected again. If they do not fit into the scratch memory, the whole row is bisected.
3. `race._race_kernel`, a program per turn of a row: its part of the race. The noise, in float64, is computed only where
   a token's random bits could beat the best so far. The last part of a row to end takes the best of all.

A logit of NaN or +inf, or a row of only -inf, gives token -1.
"""

import torch
from torch import Tensor

from lullm.ops.draw_table import DrawTable
from lullm.ops.triton.draw.race import RACE
from lullm.ops.triton.draw.threshold import LIMIT, SCAN
from lullm.ops.triton.overlap import overlap_options
from lullm.ops.triton.tile import LIMIT_WARPS, PART_WARPS, SAMPLING_BLOCK, SAMPLING_ROOM
from lullm.units import cdiv, next_power_of_2

_CHUNK = 512


def draw_tokens(logits: Tensor, table: DrawTable, writes_logits: bool = False) -> Tensor:
    """Token ids `[N]` int64, -1 for a row without a token. Three launches; does not synchronise.

    Args:
        logits: `[N, V]` float32, after penalties, bias and restrictions.
        writes_logits: write the logits of the draw into rows that are not greedy: `(logit - best) / temperature`, -inf
            for dropped tokens.
    """
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    num_rows, vocab_size = logits.shape
    num_chunks, num_parts = cdiv(vocab_size, _CHUNK), cdiv(vocab_size, SAMPLING_BLOCK)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return tokens
    state = torch.empty((4, num_rows), dtype=torch.int32, device=logits.device)
    scratch = torch.empty(num_rows * (num_chunks + SAMPLING_ROOM), dtype=torch.float32, device=logits.device)
    runners = torch.empty((num_rows, 2, num_parts), dtype=torch.float64, device=logits.device)
    stride, sizes = logits.stride(0), {"VOCAB_SIZE": vocab_size}
    chunks = sizes | {"CHUNK": _CHUNK, "NUM_CHUNKS": num_chunks}
    # The noise has the same bits everywhere: no fusion of products and sums.
    options = {**overlap_options(), "enable_fp_fusion": False}
    SCAN[(num_parts, num_rows)](
        scratch, logits, stride, **chunks, ROOM=SAMPLING_ROOM, BLOCK=SAMPLING_BLOCK, **options, num_warps=PART_WARPS
    )  # fmt: skip
    LIMIT[(num_rows,)](
        tokens,
        state,
        logits,
        scratch,
        table.temperatures,
        table.top_k,
        table.top_p,
        stride,
        num_rows,
        **chunks,
        BLOCK_CHUNKS=next_power_of_2(num_chunks),
        ROOM=SAMPLING_ROOM,
        BLOCK=SAMPLING_BLOCK,
        **options,
        num_warps=LIMIT_WARPS,
    )
    RACE[(num_parts, num_rows)](
        tokens,
        state,
        runners,
        logits,
        table.temperatures,
        table.min_p_floors,
        table.keys,
        stride,
        num_rows,
        **sizes,
        NUM_PARTS=num_parts,
        BLOCK_PARTS=next_power_of_2(num_parts),
        BLOCK=SAMPLING_BLOCK,
        WRITES_LOGITS=writes_logits,
        **options,
        num_warps=PART_WARPS,
    )
    return tokens
