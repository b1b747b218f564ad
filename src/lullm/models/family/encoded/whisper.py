"""Whisper: log-mel features to text (https://arxiv.org/abs/2212.04356)."""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.encoder.sound import SoundEncoder
from lullm.models.family.encoded.decoder import EncodedStyle, encoded_rules


def whisper_style(config: ModelConfig) -> EncodedStyle:
    """Keys have no bias in its files, so their part of a joint bias stays 0."""
    rules = encoded_rules(config, (r"^proj_out\.", "lm_head."))
    return EncodedStyle(replace(rules, zeros=(re.compile(r"\.(k|qkv|kv)_proj\.bias$"),)), SoundEncoder)
