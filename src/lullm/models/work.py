"""The least work of a model's step: bytes of weights to read, and operations of matrix products.

Divided by a machine's speeds of reading and computing, it is the least time of a step (the roofline of Williams,
Waterman and Patterson, 2009).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from lullm.config.model import ModelConfig

_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes to read, operations of products."""

    num_bytes: float
    num_operations: float


def parts(model: nn.Module, config: ModelConfig, num_rows: int, num_logits: int = 1) -> list[Work]:
    """The work of a step with `num_rows` tokens and `num_logits` rows of logits, by parameter, with all experts
    together.

    Each part needs the results of others, so an engine that computes layer by layer does not read for one part during
    another's products. Without attention, which depends on the contexts; for an unquantized model.
    """
    found: dict[str, list[Work]] = {}
    for name, parameter in model.named_parameters():
        if not _is_read(name, config):
            continue
        rows = num_rows * share_used(name, config)
        if "lm_head." in name or "embed_tokens." in name:
            rows = num_logits
        num_operations = 2 * rows * parameter.numel() if parameter.dim() >= 2 else 0.0
        one = Work(parameter.nbytes * _share_read(name, config, num_rows), num_operations)
        found.setdefault(_EXPERT.sub(".experts.", name), []).append(one)
    return [_sum(works) for works in found.values()]


def bytes_read(model: nn.Module, config: ModelConfig, num_rows: int = 1) -> float:
    """Bytes of weights that a step with `num_rows` tokens reads: all, except tables and experts that no token uses."""
    return _sum(parts(model, config, num_rows)).num_bytes


def operations(model: nn.Module, config: ModelConfig, num_rows: int, num_logits: int = 1) -> float:
    """Operations of the products of all parts."""
    return _sum(parts(model, config, num_rows, num_logits)).num_operations


def share_used(name: str, config: ModelConfig) -> float:
    """The part of a parameter that one token uses: some of a layer's experts."""
    experts = config.family.experts
    return experts.num_used / experts.num_experts if experts is not None and ".experts." in name else 1.0


def _share_read(name: str, config: ModelConfig, num_rows: int) -> float:
    """The part of a parameter that `num_rows` tokens use together, if each draws its experts evenly."""
    return 1 - (1 - share_used(name, config)) ** num_rows


def _is_read(name: str, config: ModelConfig) -> bool:
    """Whether all of it is read. An embedding that is not the head is read row by row, a tower for pictures only."""
    is_table = "embed_positions" in name or "embed_tokens_per_layer" in name or name.startswith("vision.")
    return not is_table and ("embed_tokens" not in name or config.tie_word_embeddings)


def _sum(works: Iterable[Work]) -> Work:
    works = list(works)
    return Work(sum(work.num_bytes for work in works), sum(work.num_operations for work in works))
