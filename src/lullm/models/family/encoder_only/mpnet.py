"""MPNet (https://arxiv.org/abs/2004.09297): BERT whose scores have a learned bias by the distance of two tokens, which
is the same in all layers.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.encoder_only import Encoder
from lullm.models.family.encoder_only.bert import BERT_NAMES, bert_style, encoder_rules
from lullm.nn.context import StepContext
from lullm.nn.linear import meta_parameter

_FARTHEST = 128
"""From this distance on all have one bucket."""


class MPNetEncoder(Encoder):
    """An encoder with that bias."""

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style, dtype, max_model_len)
        encoder = config.family.encoder_only
        assert encoder is not None, "of a family of encoders"
        self.bias_of_distance = meta_parameter((encoder.num_buckets, config.num_attention_heads), dtype)

    def run_layers(self, hidden: Tensor, context: StepContext) -> tuple[Tensor, Tensor | None]:
        """See `Decoder.run_layers`."""
        bias = bias_of(self.bias_of_distance, max(context.query_lens))
        return super().run_layers(hidden, replace(context, distances=bias))


def bias_of(weight: Tensor, length: int) -> Tensor:  # [N, Hq] -> [Hq, length, length]
    """The bias of a token (rows) on what it sees (columns), by buckets: half for each side, the nearest ones exact."""
    half = len(weight) // 2
    distances = torch.arange(length, device=weight.device)
    exact = half // 2
    share = torch.log(distances.clamp(min=1).float() / exact) / math.log(_FARTHEST / exact)
    wide = (exact + (share * (half - exact)).to(torch.int64)).clamp(max=half - 1)
    buckets = torch.where(distances < exact, distances, wide)
    of_distance = torch.cat((weight[buckets.flip(0)], weight[buckets[1:] + half]))  # [2 * length - 1, Hq], behind first
    places = distances[None, :] - distances[:, None] + length - 1
    return of_distance[places].permute(2, 0, 1).contiguous()


def mpnet_style(config: ModelConfig) -> DecoderStyle:
    """Names as BERT's, but for attention."""
    names = (
        *((rf"\.attention\.attn\.{name}\.", f".self_attn.{name}_proj.") for name in "qkvo"),
        (r"\.attention\.LayerNorm\.", ".input_layernorm."),
        (r"^encoder\.relative_attention_bias\.weight$", "model.bias_of_distance"),
    )
    return replace(bert_style(config), rules=encoder_rules(config, *names, *BERT_NAMES), make_decoder=MPNetEncoder)
