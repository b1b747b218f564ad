"""MiniMax (https://arxiv.org/abs/2501.08313): lightning attention in every second layer, experts as Mixtral's in all.

The residual stream is what a norm gives, not what it reads: it goes on times a factor, plus what attention or the
experts give times another.
"""

import re

from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderLayer, DecoderStyle, LayerSpec, attention_alone
from lullm.models.family.experts.routed import MIXTRAL_RENAMES, experts_or_mlp
from lullm.models.rules import rules_of
from lullm.nn.context import StepContext
from lullm.nn.recurrent.lightning import LightningAttention
from lullm.ops.table import Ops
from lullm.weights.rule import Fusion, HeadOrder, Scale

RATES = re.compile(r"\.self_attn\.(slope_rate|(query|key|diagonal)_decay)$")
"""They follow from the sizes; files hold them all the same."""


class MiniMaxLayer(DecoderLayer):
    """One layer, under the checkpoint's names."""

    def __init__(self, spec: LayerSpec):
        super().__init__(spec)
        stream = spec.config.family.normed_stream
        assert stream is not None, "of this family"
        is_linear = spec.is_recurrent
        self.kept_by_mixer = stream.linear_kept if is_linear else stream.full_kept
        self.kept_by_mlp = stream.mlp_kept

    def forward(self, hidden: Tensor, residual: Tensor | None, context: StepContext) -> tuple[Tensor, None]:
        """`hidden`: all of the residual stream."""
        ops = context.ops
        stream = self.input_layernorm(hidden, ops)
        _keep(stream, self.kept_by_mixer, self.mix(stream, context), ops)
        stream = self.post_attention_layernorm(stream, ops)
        _keep(stream, self.kept_by_mlp, self.feed(stream, ops), ops)
        return stream, None


def _keep(stream: Tensor, factor: float, added: Tensor, ops: Ops) -> None:
    if factor != 1.0:
        ops.scale_(stream, factor)
    ops.add_(stream, added)


def _mixers(spec: LayerSpec) -> dict[str, nn.Module]:
    if not spec.is_recurrent:
        return attention_alone(spec)
    return {"self_attn": LightningAttention(spec.config, spec.number, spec.place, spec.dtype)}


def minimax_style(config: ModelConfig) -> DecoderStyle:
    stream, size = config.family.normed_stream, config.head_dim
    assert stream is not None, "of this family"
    # A checkpoint has query, key and value of a head together; here all keys come first, then queries, then values.
    starts = [(3 * head + part) * size for part in (1, 0, 2) for head in range(config.num_attention_heads)]
    order = tuple(start + row for start in starts for row in range(size))
    rules = rules_of(config).plus(
        renames=MIXTRAL_RENAMES,
        fusions=(Fusion(("qkv_proj", "output_gate"), "qkvz_proj"),),
        drops=(RATES,),
        head_orders=(HeadOrder(re.compile(r"\.self_attn\.qkv_proj\."), order),),
        scales=(
            Scale(re.compile(r"\.self_attn\.o_proj\."), stream.full_added),
            Scale(re.compile(r"\.self_attn\.out_proj\."), stream.linear_added),
            Scale(re.compile(r"\.down_proj\."), stream.mlp_added),
        ),
    )
    return DecoderStyle(rules, make_mlp=experts_or_mlp, make_mixers=_mixers, make_layer=MiniMaxLayer)
