"""Llama 4 (https://ai.meta.com/blog/llama-4-multimodal-intelligence), without its tower.

Layers that rotate their heads see chunks of the sequence, and norm heads without weights; the others see all, and
stretch their queries. A router's scores multiply an expert's input.
"""

from dataclasses import replace

from torch import nn

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, LayerSpec, attention_alone
from lullm.models.family.experts.routed import COLUMN_STACKS, experts_or_mlp
from lullm.models.family.glm import with_neighbours
from lullm.weights.rule import renames

LLAMA4_RENAMES = renames((r"\.feed_forward\.router\.", ".mlp.gate."), (r"\.feed_forward\.", ".mlp."))


def _attention(spec: LayerSpec) -> dict[str, nn.Module]:
    """Norms without weights come before the rotation: the result is the same as after it, since it keeps a head's
    length.
    """
    if spec.config.family.ropes[spec.number] is None:
        style = replace(spec.style, qk_norm=None)
    else:
        style = replace(spec.style, query_factors=None)
    return attention_alone(replace(spec, style=style))


def llama4_style(config: ModelConfig) -> DecoderStyle:
    family = config.family
    stacks = tuple(replace(stack, or_plain=False) for stack in COLUMN_STACKS)  # all files are alike: a square is turned
    return DecoderStyle(
        with_neighbours(config, *LLAMA4_RENAMES).plus(stacks=stacks),
        qk_norm=family.qk_norm,
        make_mlp=experts_or_mlp,
        make_mixers=_attention,
    )
