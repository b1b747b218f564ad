"""The decoder beside an encoder: layers that attend to their own tokens, then to the encoder's rows.

The keys and values of both are in the same cache: a layer writes those of the rows once, into the sequence's first
blocks (`Model.write_encoder`), and steps read them as a cache group of its own (`step.encoder`).
"""

import re
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from lullm.config.layer.encoder import EncoderConfig
from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderLayer, DecoderStyle, LayerSpec, plain_mlp
from lullm.models.encoder.sound import SoundEncoder
from lullm.models.encoder.text import TextEncoder
from lullm.models.family.gpt import GPT
from lullm.models.family.layer_norm.parallel import layer_norm
from lullm.models.protocol import TileReader
from lullm.nn.context import StepContext
from lullm.nn.linear import FusedLinear, Linear
from lullm.nn.norm import Norm
from lullm.ops.attention_layout import CausalScores
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.table import Ops
from lullm.types.packed import unpack
from lullm.types.vision.tile import Tile
from lullm.weights.rule import Fusion, WeightRules, renames

MakeEncoder = Callable[[EncoderConfig, int, torch.dtype], SoundEncoder | TextEncoder]
_CROSS = 1
"""The group of a step's attention to the encoder's rows (`step.encoder.split`); a sequence's own tokens are group 0."""


class CrossAttention(nn.Module):
    """Queries of tokens over the keys and values of an encoder's rows."""

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype):
        super().__init__()
        size = config.hidden_size
        self.layer, self.head_dim = layer, config.head_dim
        self.scores = CausalScores(config.family.attention_scale)
        self.q_proj = Linear(size, size, True, dtype)
        self.kv_proj = FusedLinear(size, (size, size), True, dtype)
        self.o_proj = Linear(size, size, True, dtype)

    def write(self, rows: Tensor, slots: Tensor, cache: LayerCache, ops: Ops) -> None:
        """Write the keys and values of `rows [P, H]` into `slots [P]`."""
        ops.write_cache(self.kv_proj(rows, ops).unflatten(-1, (-1, self.head_dim)), cache, slots)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        ops, cache = context.ops, context.caches[self.layer]
        q = self.q_proj(x, ops).unflatten(-1, (-1, self.head_dim))
        if context.watch is not None:
            context.watch(self.layer, q, cache, self.scores.scale)
        out = ops.attention(q, cache, context.attention[_CROSS], self.scores)
        return self.o_proj(out.flatten(1), ops)


class EncodedLayer(DecoderLayer):
    """One layer of the decoder. Norms come before attention and MLP, or behind the sums."""

    def __init__(self, spec: LayerSpec):
        super().__init__(spec)
        self.norms_first = spec.config.family.norms_first
        self.encoder_attn = CrossAttention(spec.config, spec.number, spec.dtype)
        self.encoder_attn_layer_norm = layer_norm(spec.config, spec.dtype)

    def forward(self, hidden: Tensor, residual: Tensor | None, context: StepContext) -> tuple[Tensor, None]:
        """`hidden`: all of the residual stream, which is overwritten."""
        ops, x = context.ops, hidden
        parts: tuple[tuple[Norm, Callable[[Tensor], Tensor]], ...] = (
            (self.input_layernorm, lambda rows: self.mix(rows, context)),
            (self.encoder_attn_layer_norm, lambda rows: self.encoder_attn(rows, context)),
            (self.post_attention_layernorm, lambda rows: self.feed(rows, ops)),
        )
        for norm, part in parts:
            ops.add_(x, part(norm(x, ops) if self.norms_first else x))
            if not self.norms_first:
                x = norm(x, ops)
        return x, None


class EncodedLM(CausalLM):
    """An encoder, a decoder, a head."""

    has_stages = reads_shown = has_pooling_heads = False

    def __init__(
        self,
        config: ModelConfig,
        style: DecoderStyle,
        dtype: torch.dtype,
        max_model_len: int,
        make_encoder: MakeEncoder,
    ):
        super().__init__(config, style, dtype, max_model_len)
        assert config.encoder is not None, "of families with an encoder"
        self.encoder = make_encoder(config.encoder, config.hidden_size, dtype)

    @property
    def tile_reader(self) -> TileReader:
        """See `Model.tile_reader`."""
        return self.encoder if isinstance(self.encoder, SoundEncoder) else self._read_text

    def _read_text(self, tile: Tile, device: torch.device, ops: Ops) -> Tensor:  # [1, R, H]
        token_ids = torch.tensor(unpack(tile.pixels), device=device)
        rows: Tensor = self.encoder(self.model.embed_text(token_ids, ops), ops)
        return rows[None]

    def write_encoder(self, rows: Tensor, slots: Tensor, caches: Sequence[LayerCache], ops: Ops) -> None:
        """See `Model.write_encoder`."""
        for layer in self.model.layers:
            assert isinstance(layer, EncodedLayer)
            layer.encoder_attn.write(rows, slots, caches[layer.encoder_attn.layer], ops)


def encoded_style(
    config: ModelConfig, rules: WeightRules, make_encoder: MakeEncoder, has_logit_bias: bool = False
) -> DecoderStyle:
    """`make_encoder`: (config, hidden size, dtype) -> the encoder."""
    assert config.encoder is not None, "of families with an encoder"
    return DecoderStyle(
        rules,
        has_logit_bias=has_logit_bias,
        norms_embedding=not config.family.norms_first,
        make_norm=layer_norm,
        make_mlp=plain_mlp,
        make_layer=EncodedLayer,
        make_decoder=partial(GPT, num_unused=config.encoder.num_unused_positions),
        make_model=partial(EncodedLM, make_encoder=make_encoder),
    )


def encoded_rules(config: ModelConfig, *first: tuple[str, str]) -> WeightRules:
    """The rules of these families; `first`: renames of one of them, before the others."""
    tied = (r"^(lm_head|proj_out)\.weight$",) if config.ties_head else ()  # a copy of the embedding
    return WeightRules(
        renames=renames(
            *first,
            (r"^(model\.)?encoder\.", "encoder."),
            (r"^(model\.)?decoder\.", "model."),
            (r"^model\.(layer_norm)\.", "model.norm."),
            (r"^(model|encoder)\.layernorm_embedding\.", r"\1.embed_norm."),
            (r"(?<=^model\.layers)(\.\d+\.(?:self|encoder)_attn\.)out_proj\.", r"\1o_proj."),
            (r"(?<=^model\.layers)(\.\d+\.)self_attn_layer_norm\.", r"\1input_layernorm."),
            (r"(?<=^model\.layers)(\.\d+\.)final_layer_norm\.", r"\1post_attention_layernorm."),
            (r"(?<=^model\.layers)(\.\d+\.)(?=fc[12]\.)", r"\1mlp."),
        ),
        fusions=(Fusion(("q_proj", "k_proj", "v_proj"), "qkv_proj"), Fusion(("k_proj", "v_proj"), "kv_proj")),
        drops=tuple(re.compile(pattern) for pattern in tied),
    )
