"""ModernBERT: windows to both sides in two of three layers, a rope per kind of layer."""

from dataclasses import replace
from typing import Literal

from lullm.config.decoder import DecoderConfig, EncoderOnlyConfig
from lullm.config.family.encoder_only.bert import check_encoder
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import FULL, SLIDING, Kinds, kinds_by_type, num_layers
from lullm.config.family.layer_norm.families import whole_heads
from lullm.config.family.layer_norm.modernbert import MODERNBERT_DECODER
from lullm.config.field import MOST_LAYERS, Data, boolean, positive_int, shown
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import EncoderOnlyAttention, FullAttention


def _kinds(data: Data) -> Kinds:
    interval = positive_int(data, "global_attn_every_n_layers", 3, MOST_LAYERS)
    default = [SLIDING if layer % interval else FULL for layer in range(num_layers(data))]
    reach = positive_int(data, "local_attention", 128) // 2
    kinds = kinds_by_type(data, {SLIDING: EncoderOnlyAttention(reach)}, default)
    return tuple(EncoderOnlyAttention() if isinstance(kind, FullAttention) else kind for kind in kinds)


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    check_encoder(data)
    kind: Literal["cls", "mean"] = data.get("classifier_pooling", "cls")
    if kind not in ("cls", "mean"):
        raise ModelLoadError(f"config.json: classifier_pooling must be cls or mean, not {shown(kind)}")
    return replace(
        MODERNBERT_DECODER.read(data, kinds, head_dim),
        has_logit_bias=False,
        encoder_only=EncoderOnlyConfig(
            label_kind=kind,
            label_activation="gelu",
            has_label_bias=boolean(data, "classifier_bias", False),
            has_label_norm=True,
            has_token_layer=True,
        ),
    )


MODERNBERT = Family(
    _read,
    aliases=MODERNBERT_DECODER.aliases,
    defaults={**MODERNBERT_DECODER.defaults, "max_position_embeddings": 8192, "classifier_pooling": "cls"},
    reads=MODERNBERT_DECODER.reads - {"sliding_window", "decoder_bias"} | {"classifier_bias", "is_decoder"},
    fixed={"norm_bias": False, "classifier_activation": "gelu"},
    # `sliding_window`: half of `local_attention`, for other code
    ignores=MODERNBERT_DECODER.ignores - {"classifier_pooling"} | {"decoder_bias", "sliding_window"},
    layer_kinds=_kinds,
    derive=whole_heads,
)
