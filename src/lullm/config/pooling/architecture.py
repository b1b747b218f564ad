"""Architectures of checkpoints without a head for next tokens: with a matrix of labels, or with nothing at all."""

from typing import NamedTuple

_FAMILIES = frozenset(
    {"Gemma2", "Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "SmolLM3"}
)
"""Those whose `...ForSequenceClassification` transformers has, over the shared decoder."""


_OLDER_NAMES = {"MPTForCausalLM": "MptForCausalLM", "PhiMoEForCausalLM": "PhimoeForCausalLM"}
"""Of checkpoints from before transformers had the model."""


class Architecture(NamedTuple):
    """`base`: the same with a head for next tokens, whose family reads and builds the rest."""

    base: str
    has_lm_head: bool = True
    has_labels: bool = False


def split_architecture(name: str) -> Architecture:
    """What an architecture of a `config.json` has behind its layers."""
    for suffix, has_labels in (("ForSequenceClassification", True), ("Model", False)):
        family = name.removesuffix(suffix)
        if family != name and family in _FAMILIES:
            return Architecture(f"{family}ForCausalLM", False, has_labels)
    return Architecture(_OLDER_NAMES.get(name, name))
