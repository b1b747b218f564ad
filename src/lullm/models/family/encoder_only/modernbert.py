"""ModernBERT (https://arxiv.org/abs/2412.13663): the layers of its decoder, whose tokens see those behind them, too."""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.encoder_only import EncoderModel
from lullm.models.family.layer_norm.modernbert import RENAMES, ModernBertLayer, norm
from lullm.models.rules import rules_of
from lullm.weights.rule import renames

_OF_TOKENS = ("^lm_head", "^decoder")
_HEAD = renames(
    (r"^model\.(?=(head|classifier|decoder)\.)", ""),
    (r"^classifier\.weight$", "head.labels.weight"),
    (r"^classifier\.bias$", "head.bias"),
)


def modernbert_style(config: ModelConfig) -> DecoderStyle:
    unused = (r"^decoder\.",) if config.labels is not None else (r"^decoder\.", r"^head\.")
    own = tuple(rename for rename in RENAMES if not rename.pattern.pattern.startswith(_OF_TOKENS))
    plain = renames((r"\.attn\.Wqkv\.", ".self_attn.qkv_proj."), (r"^(?=(embeddings|final_norm)\.)", "model."))
    rules = rules_of(config, *plain, *own, *_HEAD).plus(drops=tuple(map(re.compile, unused)))
    return DecoderStyle(
        replace(rules, fusions=()),
        norms_embedding=True,
        make_norm=norm,
        make_layer=ModernBertLayer,
        make_model=EncoderModel,
    )
