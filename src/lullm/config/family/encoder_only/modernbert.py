"""ModernBERT: windows to both sides in two of three layers, a rope per kind of layer."""

from dataclasses import replace
from typing import Literal

from lullm.config.decoder import DecoderConfig, EncoderOnlyConfig
from lullm.config.family.dense import activation, read_dense
from lullm.config.family.encoder_only.bert import check_encoder
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import FULL, SLIDING, Kinds, kinds_by_type, num_layers
from lullm.config.family.layer_norm.families import DROPOUTS, whole_heads
from lullm.config.field import MOST_LAYERS, Data, boolean, positive_int, shown
from lullm.config.rope import read_ropes_by_kind, read_theta
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import EncoderOnlyAttention, FullAttention, has_window


def _kinds(data: Data) -> Kinds:
    interval = positive_int(data, "global_attn_every_n_layers", 3, MOST_LAYERS)
    default = [SLIDING if layer % interval else FULL for layer in range(num_layers(data))]
    reach = positive_int(data, "local_attention", 128) // 2
    kinds = kinds_by_type(data, {SLIDING: EncoderOnlyAttention(reach)}, default)
    return tuple(EncoderOnlyAttention() if isinstance(kind, FullAttention) else kind for kind in kinds)


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    check_encoder(data)
    full, local = read_theta(data, "global_rope_theta", 16e4), read_theta(data, "local_rope_theta", 1e4)
    ropes = read_ropes_by_kind(data, full, local)
    kind: Literal["cls", "mean"] = data.get("classifier_pooling", "cls")
    if kind not in ("cls", "mean"):
        raise ModelLoadError(f"config.json: classifier_pooling must be cls or mean, not {shown(kind)}")
    return replace(
        read_dense({**data, "rope_parameters": None}, kinds, head_dim),
        ropes=tuple(ropes[has_window(each)] for each in kinds),
        activation=activation(data, "hidden_activation"),
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
    aliases={"norm_eps": "rms_norm_eps"},
    defaults={
        "norm_eps": 1e-5, "hidden_activation": "gelu", "tie_word_embeddings": True, "intermediate_size": 1152,
        "local_attention": 128, "max_position_embeddings": 8192, "classifier_pooling": "cls",
    },
    reads={
        "rope_parameters", "attention_bias", "mlp_bias", "global_attn_every_n_layers", "global_rope_theta",
        "local_rope_theta", "classifier_bias", "is_decoder",
    },
    fixed={"norm_bias": False, "classifier_activation": "gelu"},
    # `sliding_window`: half of `local_attention`, for other code
    ignores=DROPOUTS
    | {
        "mlp_dropout", "classifier_dropout", "initializer_cutoff_factor", "cls_token_id", "layer_norm_eps",
        "position_embedding_type", "deterministic_flash_attn", "reference_compile", "repad_logits_with_grad",
        "sparse_prediction", "sparse_pred_ignore_index", "causal_mask", "decoder_bias", "sliding_window",
    },
    layer_kinds=_kinds,
    derive=whole_heads,
)  # fmt: skip
