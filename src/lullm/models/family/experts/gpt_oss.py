"""gpt-oss (https://arxiv.org/abs/2508.10925): attention sinks, windows in every second layer, clamped gates in experts.

A checkpoint holds the matrices of all experts of a layer as one tensor, in floating point or in MXFP4.
"""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.family.experts.routed import experts_or_mlp
from lullm.models.rules import rules_of
from lullm.weights.encoding.joining import Join
from lullm.weights.encoding.mxfp4 import encode_mxfp4
from lullm.weights.rule import Rename, Stack

ROUTER = Rename(re.compile(r"\.mlp\.router\."), ".mlp.gate.")
STACKS = (
    Stack("experts", "gate_up_proj", ("gate_proj.weight", "up_proj.weight"), is_transposed=True),
    Stack("experts", "gate_up_proj_bias", ("gate_proj.bias", "up_proj.bias")),
    Stack("experts", "down_proj", ("down_proj.weight",), is_transposed=True),
    Stack("experts", "down_proj_bias", ("down_proj.bias",)),
)
JOIN = Join(("_blocks", "_scales"), encode_mxfp4)
"""`X_blocks` and `X_scales` are one tensor `X`."""


def gpt_oss_style(config: ModelConfig) -> DecoderStyle:
    rules = replace(rules_of(config, ROUTER), stacks=STACKS, joins=(JOIN,))
    return DecoderStyle(rules, make_mlp=experts_or_mlp)
