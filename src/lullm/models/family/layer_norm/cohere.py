"""Command R (https://huggingface.co/CohereLabs/c4ai-command-r-v01) and Command R7B and A
(https://arxiv.org/abs/2504.00698): pairs of neighbours turn, norms have no bias, logits are scaled.

The newer ones have windows in three of four layers; the others do not rotate their heads.
"""

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderStyle
from lullm.models.family.glm import with_neighbours
from lullm.models.family.layer_norm.parallel import ParallelLayer
from lullm.nn.norm import LayerNorm


def _norm(config: ModelConfig, dtype: torch.dtype) -> LayerNorm:
    return LayerNorm(config.hidden_size, config.family.rms_norm_eps, dtype, has_bias=False)


def build_cohere(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    bias = config.family.attention_bias
    style = DecoderStyle(with_neighbours(config), qkv_bias=bias, o_bias=bias, make_norm=_norm, make_layer=ParallelLayer)
    return CausalLM(config, style, dtype, max_model_len)
