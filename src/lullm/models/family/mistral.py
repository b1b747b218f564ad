"""Mistral 7B (https://arxiv.org/abs/2310.06825), Ministral and Ministral 3: Llama without biases, mostly with windows.

The layers do not handle the window: the step's attention layout and the block tables do. Ministral 3 stretches its
queries after the trained length.
"""

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderStyle, rules_of
from lullm.nn.attention import stretch_factors


def build_mistral(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    factors = stretch_factors(config.family.query_stretch, max_model_len, dtype)
    return CausalLM(config, DecoderStyle(rules_of(config), query_factors=factors), dtype, max_model_len)
