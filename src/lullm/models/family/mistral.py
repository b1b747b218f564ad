"""Mistral 7B (https://arxiv.org/abs/2310.06825): Llama without biases, and mostly with a sliding window.

The layers do not handle the window: the step's attention layout and the block tables do.
"""

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderStyle, rules_of


def build_mistral(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    return CausalLM(config, DecoderStyle(rules_of(config)), dtype, max_model_len)
