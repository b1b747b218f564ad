"""What a step of a model cannot do without: bytes of weights to read, and operations of matrix products.

Divided by what a machine reads and computes in a second, it is the least time that a step takes (the roofline of
Williams, Waterman and Patterson, 2009).
"""

from torch import nn

from lullm.config.model import ModelConfig


def bytes_read(model: nn.Module, config: ModelConfig, num_rows: int = 1) -> float:
    """Bytes of weights that a step with so many tokens reads: all, but for tables and experts that no token uses."""
    return sum(
        parameter.nbytes * _share_read(name, config, num_rows)
        for name, parameter in model.named_parameters()
        if _is_read(name, config)
    )


def operations(model: nn.Module, config: ModelConfig, num_rows: int, num_logits: int = 1) -> float:
    """Operations of the products of a step with so many tokens and rows of logits; of an unquantized model.

    Without attention, which depends on the contexts.
    """
    total = 0.0
    for name, parameter in model.named_parameters():
        if _is_read(name, config) and parameter.dim() >= 2:
            is_head = "lm_head." in name or "embed_tokens." in name
            rows = num_logits if is_head else num_rows * share_used(name, config)
            total += 2 * rows * parameter.numel()
    return total


def share_used(name: str, config: ModelConfig) -> float:
    """The part of a parameter that one token uses: of the experts of a layer, some."""
    experts = config.family.experts
    return experts.num_used / experts.num_experts if experts is not None and ".experts." in name else 1.0


def _share_read(name: str, config: ModelConfig, num_rows: int) -> float:
    """The part of a parameter that so many tokens use together, if each draws its experts evenly."""
    return 1 - (1 - share_used(name, config)) ** num_rows


def _is_read(name: str, config: ModelConfig) -> bool:
    """A table of embeddings is read row by row, unless it is the head as well."""
    is_table = "embed_positions" in name or "embed_tokens_per_layer" in name
    return not is_table and ("embed_tokens" not in name or config.tie_word_embeddings)
