"""BART: text to text (https://arxiv.org/abs/1910.13461)."""

import re

from lullm.config.family.encoder_decoder import BART_UNUSED_POSITIONS as NUM_UNUSED
from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.encoder.text import TextEncoder
from lullm.models.family.encoded.decoder import encoded_rules, encoded_style
from lullm.models.rules import used_first

_COPIES = re.compile(r"^(encoder|model)\.embed_tokens_copy\.weight$")


def bart_style(config: ModelConfig) -> DecoderStyle:
    """Encoder and decoder share one embedding, which a file may hold several times."""
    rules = encoded_rules(
        config,
        (r"^(model\.)?(encoder|decoder)\.embed_tokens\.", r"\1\2.embed_tokens_copy."),
        (r"^(model\.)?shared\.", "decoder.embed_tokens."),
        (r"^final_logits_bias$", "logit_bias.weight"),
    )
    rules = rules.plus(
        drops=(_COPIES,),
        head_orders=(used_first(NUM_UNUSED, config.max_position_embeddings + NUM_UNUSED),),
        flattens=(re.compile(r"^logit_bias\.weight$"),),
        zeros=(re.compile(r"^logit_bias\.weight$"),),
    )
    return encoded_style(config, rules, TextEncoder, has_logit_bias=True)
