"""ALBERT (https://arxiv.org/abs/1909.11942): BERT whose layers are one, or a few, each run several times."""

import re
from dataclasses import replace

import torch
from torch import Tensor

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.encoder_only import Encoder
from lullm.models.family.encoder_only.bert import bert_style, encoder_rules
from lullm.nn.context import StepContext


class AlbertEncoder(Encoder):
    """An encoder that holds a layer for each group. Nothing is kept between steps, so one may run again."""

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style, dtype, max_model_len)
        encoder = config.family.encoder_only
        assert encoder is not None, "of a family of encoders"
        self.num_runs, self.num_groups = len(self.layers), encoder.num_groups
        self.layers = self.layers[: self.num_groups]

    def run_layers(self, hidden: Tensor, context: StepContext) -> tuple[Tensor, Tensor | None]:
        """See `Decoder.run_layers`."""
        context = self.with_rotary(context)
        for number in range(self.num_runs):
            hidden, _ = self.layers[number * self.num_groups // self.num_runs](hidden, None, context)
        return hidden, None


def albert_style(config: ModelConfig) -> DecoderStyle:
    names = (
        (r"^encoder\.embedding_hidden_mapping_in\.", "model.embed_projection."),
        (r"^encoder\.albert_layer_groups\.(\d+)\.albert_layers\.0\.", r"model.layers.\1."),
        *((rf"\.attention\.{name}\.", f".self_attn.{name[0]}_proj.") for name in ("query", "key", "value")),
        (r"\.attention\.dense\.", ".self_attn.o_proj."),
        (r"\.attention\.LayerNorm\.", ".input_layernorm."),
        (r"\.ffn\.", ".mlp.fc1."),
        (r"\.ffn_output\.", ".mlp.fc2."),
        (r"\.full_layer_layer_norm\.", ".post_attention_layernorm."),
        (r"^pooler\.(?=(weight|bias)$)", "head.dense."),
    )
    training = (re.compile(r"^(predictions|sop_classifier)\."), re.compile(r"^embeddings\.token_type_ids$"))
    rules = encoder_rules(config, *names).plus(drops=training)
    return replace(bert_style(config), rules=rules, make_decoder=AlbertEncoder)
