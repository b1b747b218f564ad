"""Temperature and the truncations top_k, top_p and min_p.

Each truncation is one threshold per row: tokens whose logit is below it are dropped. So equally likely tokens are kept
or dropped together, and the result does not depend on the order in which a device sorts them:

- top_k keeps a token if fewer than k tokens are more likely,
- top_p keeps it if the more likely tokens hold less than p of the mass that top_k has left,
- min_p keeps it if its probability is at least min_p times the best one's.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lullm.types.draw import DrawParams

_FIRST_WIDTH = 1024  # candidates for top_p that are tried first; nearly always enough, and far cheaper than a sort
_WIDENING = 8


def scale_by_temperature_(logits: Tensor, best: Tensor, params: Sequence[DrawParams]) -> None:
    """(logits - best) / temperature, in place on logits [N, V]; `best` [N] is each row's maximum. Does not synchronise.

    The best token ends at 0 and all others below, so that no temperature, however small, overflows.
    """
    limits = torch.finfo(logits.dtype)
    temperatures = np.array([p.temperature for p in params]).clip(limits.tiny, limits.max)
    scale = torch.from_numpy(temperatures).to(logits.device, logits.dtype, non_blocking=True)
    logits.sub_(best.unsqueeze(1)).div_(scale.unsqueeze(1))


def truncate_(logits: Tensor, params: Sequence[DrawParams]) -> None:
    """Set dropped logits to -inf for top_k, top_p and min_p, in place on logits [N, V] whose row maxima are 0.

    Synchronises once if any row has a top_p, and again when the most likely 1024 tokens of a row do not hold its top_p.
    """
    vocab_size = logits.shape[1]
    top_k = np.array([p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params])
    top_p = np.array([p.top_p for p in params])
    min_p = np.array([p.min_p for p in params])
    has_min_p = min_p > 0
    has_top = (top_k < vocab_size) | (top_p < 1.0)
    if not (has_min_p.any() or has_top.any()):
        return
    floor = np.log(min_p, out=np.full(len(params), -np.inf), where=has_min_p)
    thresholds = torch.from_numpy(floor).to(logits.device, logits.dtype)
    # Rows with a very large top_k are handled apart, because the widest search sets the width for all rows.
    is_wide = (top_k > _FIRST_WIDTH) & (top_k < vocab_size)
    for rows in (np.flatnonzero(has_top & ~is_wide), np.flatnonzero(has_top & is_wide)):
        if len(rows):
            index = torch.from_numpy(rows).to(logits.device, non_blocking=True)
            part = logits if len(rows) == len(params) else logits[index]
            found = top_thresholds(part, top_k[rows], top_p[rows])
            thresholds[index] = torch.maximum(thresholds[index], found)
    logits.masked_fill_(logits < thresholds.unsqueeze(1), -torch.inf)


def top_thresholds(logits: Tensor, top_k: np.ndarray, top_p: np.ndarray) -> Tensor:
    """The lowest logit of each row that top_k and then top_p keep, [n]; top_k = V and top_p = 1 keep all.

    Args:
        logits: [n, V]; not changed.
        top_k: [n] int in 1..V. top_p: [n] in (0, 1].

    Synchronises only if some top_p is below 1.
    """
    vocab_size = logits.shape[1]
    limited = top_k[top_k < vocab_size]
    width = int(limited.max()) if len(limited) == len(top_k) else max(_FIRST_WIDTH, *limited, 0)
    width = min(width, vocab_size)
    candidates = logits.topk(width, dim=-1)
    thresholds = torch.full((len(logits),), -torch.inf, dtype=logits.dtype, device=logits.device)
    if len(limited):
        kth = torch.from_numpy(top_k).to(logits.device, non_blocking=True).unsqueeze(1).clamp(max=width) - 1
        unlimited = torch.from_numpy(top_k == vocab_size).to(logits.device, non_blocking=True)
        thresholds = candidates.values.gather(1, kth).squeeze(1).masked_fill_(unlimited, -torch.inf)
        logits = logits.masked_fill(logits < thresholds.unsqueeze(1), -torch.inf)
    if (top_p < 1.0).any():
        mass = torch.from_numpy(top_p).to(logits.device, non_blocking=True)
        probs = logits.softmax(-1)
        found, is_enough = _nucleus_thresholds(candidates.values, probs.gather(1, candidates.indices), mass)
        while width < vocab_size and not bool(is_enough.all()):
            width = min(width * _WIDENING, vocab_size)
            missing = torch.nonzero(~is_enough).squeeze(1)
            best = logits[missing].topk(width, dim=-1)
            found[missing], is_enough[missing] = _nucleus_thresholds(
                best.values, probs[missing].gather(1, best.indices), mass[missing]
            )
        thresholds = torch.maximum(thresholds, found)
    return thresholds


def _nucleus_thresholds(values: Tensor, probs: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """The lowest logit that top_p [n] keeps of candidates [n, K] in falling order, and whether K were enough, [n].

    Sums are in float64, so that neither K nor the device's order of addition moves the threshold.
    """
    cumulative = probs.double().cumsum(-1)
    top_p = top_p.unsqueeze(1)
    num_kept = 1 + (cumulative[:, :-1] < top_p).sum(-1, keepdim=True)
    # If the last candidate has no probability, no mass is left beyond it. NaN counts as enough.
    is_enough = ~((cumulative[:, -1:] < top_p) & (probs[:, -1:] > 0)) | (top_p == 1.0)
    found = values.gather(1, num_kept - 1).masked_fill_(top_p == 1.0, -torch.inf)
    return found.squeeze(1), is_enough.squeeze(1)
