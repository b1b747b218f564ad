"""Routing (https://arxiv.org/abs/2101.03961): the experts of each token, and their shares. In torch."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lullm.config.layer.experts import ExpertsConfig


class Routes(NamedTuple):
    """The experts of every token `[T, K]` int64, ascending, and their shares `[T, K]` float32."""

    experts: Tensor
    shares: Tensor


class Route(Protocol):
    """See `Ops.route`."""

    def __call__(
        self, products: Tensor, correction: Tensor | None, config: ExpertsConfig, factors: Tensor | None = None, /
    ) -> Routes: ...


def route(products: Tensor, correction: Tensor | None, config: ExpertsConfig, factors: Tensor | None = None) -> Routes:
    """See `Ops.route`."""
    products = products.float()
    if config.scoring == "sparsemixer":
        return _mixed_sparsely(products, config)
    scores = products.softmax(-1) if config.scoring == "softmax" else products.sigmoid()
    ranked = _in_best_groups(scores if correction is None else scores + correction, config)
    order = ranked.argsort(dim=-1, descending=True, stable=True)
    experts = order[:, : config.num_used].sort(-1).values
    shares = scores.gather(1, experts)
    if config.normalizes:
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
    shares = shares * config.scale
    return Routes(experts, shares if factors is None else shares * factors[experts])


def _mixed_sparsely(products: Tensor, config: ExpertsConfig) -> Routes:
    """One expert after the other, each with its share among those near it (https://arxiv.org/abs/2409.12136)."""
    left, chosen, shares = products, [], []
    for _ in range(config.num_used):
        best, expert = left.max(-1, keepdim=True)
        is_far = (best - products) / products.abs().clamp(min=best) > config.nearness
        shares.append(left.masked_fill(is_far, -torch.inf).softmax(-1).gather(1, expert))
        chosen.append(expert)
        left = left.scatter(1, expert, -torch.inf)
    experts, order = torch.cat(chosen, 1).sort(-1)
    return Routes(experts, torch.cat(shares, 1).gather(1, order))


def _in_best_groups(ranked: Tensor, config: ExpertsConfig) -> Tensor:
    """Set products to minus infinity outside the groups whose best experts have the largest sum."""
    if config.num_used_groups == config.num_groups:
        return ranked
    groups = ranked.unflatten(-1, (config.num_groups, -1))  # [T, G, E / G]
    sums = groups.topk(config.num_group_scores, dim=-1).values.sum(-1)
    best = sums.argsort(dim=-1, descending=True, stable=True)[:, : config.num_used_groups]
    is_best = torch.zeros(sums.shape, dtype=torch.bool, device=sums.device).scatter_(1, best, True)
    return groups.masked_fill(~is_best.unsqueeze(-1), -torch.inf).flatten(1)
