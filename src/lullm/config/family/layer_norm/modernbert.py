"""ModernBERT as a decoder (Ettin): windows in two of three layers, a rope per kind, a layer before the head."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import activation, read_dense, ropes_of
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds, window_but_every
from lullm.config.family.layer_norm.families import DROPOUTS, whole_heads
from lullm.config.field import MOST_LAYERS, Data, boolean, positive_int
from lullm.config.rope import read_ropes_by_kind, read_theta


def _derive(data: Data) -> Data:
    """`local_attention` is a window to both sides, of which a decoder sees one."""
    window = data.get("sliding_window") or positive_int(data, "local_attention") // 2
    return {**whole_heads(data), "sliding_window": window}


def _kinds(data: Data) -> Kinds:
    return window_but_every(data, positive_int(data, "global_attn_every_n_layers", 3, MOST_LAYERS), is_first=True)


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    full, local = read_theta(data, "global_rope_theta", 16e4), read_theta(data, "local_rope_theta", 1e4)
    return replace(
        read_dense({**data, "rope_parameters": None}, kinds, head_dim),
        ropes=ropes_of(kinds, *read_ropes_by_kind(data, full, local)),
        activation=activation(data, "hidden_activation"),
        has_logit_bias=boolean(data, "decoder_bias", True),
    )


MODERNBERT_DECODER = Family(
    _read,
    aliases={"norm_eps": "rms_norm_eps"},
    defaults={
        "norm_eps": 1e-5, "hidden_activation": "gelu", "tie_word_embeddings": True, "intermediate_size": 1152,
        "local_attention": 128,
    },
    reads={
        "rope_parameters", "attention_bias", "mlp_bias", "global_attn_every_n_layers", "global_rope_theta",
        "local_rope_theta", "sliding_window", "decoder_bias",
    },
    fixed={"norm_bias": False, "classifier_bias": False, "classifier_activation": "gelu"},
    # Released files have keys of the encoder, too.
    ignores=DROPOUTS
    | {
        "mlp_dropout", "classifier_dropout", "classifier_pooling", "initializer_cutoff_factor", "cls_token_id",
        "layer_norm_eps", "position_embedding_type", "deterministic_flash_attn", "reference_compile",
        "repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index", "causal_mask",
    },
    layer_kinds=_kinds,
    derive=_derive,
)  # fmt: skip
