"""Log-probabilities and ranks of the chosen token and of the best tokens.

All figures of a row are packed into one row of numbers, so that one transfer brings them to the host.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lullm.types.step import TokenLogprobs

# The search finds at least 32 best tokens, so that the order of equally likely tokens does not depend on how many the
# other rows of the batch ask for.
_MIN_WIDTH = 32


def pack_ranked_logprobs(logprobs: Tensor, chosen: Tensor, num_best: int) -> Tensor:
    """Chosen token's log-probability and rank, then ids, then log-probabilities of the best tokens.

    Does not synchronise.

    Args:
        logprobs: [R, V] float32.
        chosen: [R] token ids.
        num_best: the most that any row asks for.

    Returns:
        [R, 2 + 2 K] float64 (which holds float32 values and token ids exactly) for `unpack_ranked_logprobs`. Equally
            likely tokens are in the order of their ids.
    """
    chosen_logprob = logprobs.gather(1, chosen.unsqueeze(1))
    rank = 1 + (logprobs > chosen_logprob).sum(-1, keepdim=True)
    columns = [chosen_logprob.double(), rank.double()]
    if num_best:
        values, ids = logprobs.topk(min(max(num_best, _MIN_WIDTH), logprobs.shape[1]), dim=-1)
        ids, by_id = ids.sort(-1)
        values, by_value = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
        columns += [ids.gather(1, by_value).double(), values.double()]
    return torch.cat(columns, dim=1)


def unpack_ranked_logprobs(packed: Sequence[float], chosen: int, num_best: int) -> TokenLogprobs:
    """The chosen token, then the `num_best` best in order without the chosen one. Host only.

    A rank is one more than the number of tokens that are more likely; equally likely tokens share it. Tokens that
    cannot be drawn (log-probability -inf, in 'processed_logprobs') are left out.
    """
    ranked = [(chosen, packed[0], int(packed[1]))]
    width = (len(packed) - 2) // 2
    rank = 0
    for place in range(min(num_best, width)):
        token_id, logprob = int(packed[2 + place]), packed[2 + width + place]
        if place == 0 or logprob != packed[1 + width + place]:
            rank = place + 1
        if token_id != chosen and logprob != -math.inf:
            ranked.append((token_id, logprob, rank))
    return tuple(ranked)
