"""Mistral 7B (https://arxiv.org/abs/2310.06825), Ministral and Ministral 3: Llama without biases, mostly with windows.

The layers do not handle the window: the step's attention layout and the block tables do. Ministral 3 stretches its
queries behind the trained length.
"""

import torch

from lullm.config.decoder import QueryStretch
from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderStyle, rules_of


def stretch_within(config: ModelConfig, max_model_len: int) -> QueryStretch | None:
    """What stretches queries of so many positions; None: all factors are 1."""
    stretch = config.family.query_stretch
    return None if stretch is None or max_model_len + stretch.ahead <= stretch.trained_len else stretch


def build_mistral(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    style = DecoderStyle(rules_of(config), query_stretch=stretch_within(config, max_model_len))
    return CausalLM(config, style, dtype, max_model_len)
