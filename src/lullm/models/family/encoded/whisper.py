"""Whisper: log-mel features to text (https://arxiv.org/abs/2212.04356)."""

import re

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.encoder.sound import SoundEncoder
from lullm.models.family.encoded.decoder import encoded_rules, encoded_style


def whisper_style(config: ModelConfig) -> DecoderStyle:
    """Keys have no bias in its files, so their part of a joint bias stays 0."""
    rules = encoded_rules(config, (r"^proj_out\.", "lm_head."))
    return encoded_style(config, rules.plus(zeros=(re.compile(r"\.(k|qkv|kv)_proj\.bias$"),)), SoundEncoder)
