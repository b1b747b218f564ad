"""Architectures of checkpoints without a head for next tokens: with a matrix of labels, or with nothing at all."""

from typing import NamedTuple

_FAMILIES = frozenset(
    {"Gemma2", "Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "SmolLM3"}
)
"""Those whose `...ForSequenceClassification` transformers has, over the shared decoder."""


ENCODERS = frozenset({"Bert", "Gte", "ModernBert", "NomicBert", "Roberta", "XLMRoberta"})
"""Families that give no next tokens. What their heads of training fill in (`...ForMaskedLM`) is not loaded."""

_OLDER_NAMES = {"MPTForCausalLM": "MptForCausalLM", "PhiMoEForCausalLM": "PhimoeForCausalLM"}
"""Names in checkpoints that are older than transformers' class."""


class Architecture(NamedTuple):
    """`base`: the same architecture with a head for next tokens; its family reads and builds the rest."""

    base: str
    has_lm_head: bool = True
    has_labels: bool = False


def split_architecture(name: str) -> Architecture:
    """The parts after the layers of an architecture in `config.json`. An encoder's `base` is its `...Model`."""
    for suffix in ("ForSequenceClassification", "ForMaskedLM", "Model"):
        family = name.removesuffix(suffix)
        if family != name and family in ENCODERS:
            return Architecture(f"{family}Model", False, suffix == "ForSequenceClassification")
    for suffix, has_labels in (("ForSequenceClassification", True), ("Model", False)):
        family = name.removesuffix(suffix)
        if family != name and family in _FAMILIES:
            return Architecture(f"{family}ForCausalLM", False, has_labels)
    return Architecture(_OLDER_NAMES.get(name, name))
