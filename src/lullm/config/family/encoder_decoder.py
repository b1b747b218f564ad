"""Whisper (https://arxiv.org/abs/2212.04356) and BART (https://arxiv.org/abs/1910.13461): encoders with decoders."""

from dataclasses import replace
from typing import Any

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import activation
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds
from lullm.config.field import MOST_HEADS, MOST_INTERMEDIATE, MOST_LAYERS, Data, boolean, positive_int, token_id_list
from lullm.config.layer.encoder import EncoderConfig
from lullm.config.rope import MOST_POSITIONS
from lullm.errors import ModelLoadError

_EPS = 1e-5
"""The epsilon of all norms; the files lack it."""
_MOST_MELS = 1 << 10
BART_UNUSED_POSITIONS = 2
_BART_START = 2


def _read_whisper(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    num_mels = positive_int(data, "num_mel_bins", most=_MOST_MELS)
    rows = positive_int(data, "max_source_positions", most=MOST_POSITIONS)
    encoder = replace(_encoder(data, "audio", rows, num_mels), median_filter_width=_filter_width(data))
    return _decoder(data, kinds, head_dim, encoder)


def _read_bart(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    rows = positive_int(data, "max_position_embeddings", most=MOST_POSITIONS)
    return _decoder(data, kinds, head_dim, _encoder(data, "text", rows))


def _encoder(data: Data, reads: Any, max_rows: int, num_mels: int = 0) -> EncoderConfig:
    num_heads = positive_int(data, "encoder_attention_heads", most=MOST_HEADS)
    if positive_int(data, "hidden_size") % num_heads:
        raise ModelLoadError(f"config.json: d_model must be a multiple of encoder_attention_heads ({num_heads})")
    return EncoderConfig(
        reads=reads,
        num_layers=positive_int(data, "encoder_layers", most=MOST_LAYERS),
        num_attention_heads=num_heads,
        intermediate_size=positive_int(data, "encoder_ffn_dim", most=MOST_INTERMEDIATE),
        activation=activation(data, "activation_function"),
        layer_norm_eps=_EPS,
        max_rows=max_rows,
        num_mels=num_mels,
        norms_first=reads == "audio",
        num_unused_positions=0 if reads == "audio" else BART_UNUSED_POSITIONS,
        start_ids=() if reads == "audio" else _start_ids(data),
    )


def _filter_width(data: Data) -> int:
    width = positive_int(data, "median_filter_width", 7, MOST_POSITIONS)
    if width % 2 == 0:
        raise ModelLoadError(f"config.json: median_filter_width must be odd, not {width}")
    return width


def _start_ids(data: Data) -> tuple[int, ...]:
    """As transformers' generate begins: a start, and maybe a token that must come first."""
    start = token_id_list(data.get("decoder_start_token_id", _BART_START), "config.json: decoder_start_token_id")
    return start + token_id_list(data.get("forced_bos_token_id"), "config.json: forced_bos_token_id")


def _decoder(data: Data, kinds: Kinds, head_dim: int, encoder: EncoderConfig) -> DecoderConfig:
    is_scaled = boolean(data, "scale_embedding", False)
    return DecoderConfig(
        intermediate_size=positive_int(data, "decoder_ffn_dim", most=MOST_INTERMEDIATE),
        rms_norm_eps=_EPS,
        ropes=(None,) * len(kinds),
        attention_scale=head_dim**-0.5,
        activation=activation(data, "activation_function"),
        attention_bias=True,
        mlp_bias=True,
        embedding_scale=positive_int(data, "hidden_size") ** 0.5 if is_scaled else 1.0,
        norms_first=encoder.norms_first,
        encoder=encoder,
    )


_ALIASES = {
    "d_model": "hidden_size",
    "decoder_layers": "num_hidden_layers",
    "decoder_attention_heads": "num_attention_heads",
}
_READS = {
    "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "activation_function",
    "scale_embedding",
}  # fmt: skip
_IGNORES = {
    # of the encoder, under a common name; of the decoder, d_model and others have them
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "encoder_layerdrop", "decoder_layerdrop", "dropout", "activation_dropout", "init_std", "classifier_dropout",
    "forced_decoder_ids",
}  # fmt: skip

WHISPER = Family(
    _read_whisper,
    aliases=_ALIASES | {"max_target_positions": "max_position_embeddings"},
    defaults={
        "activation_function": "gelu", "tie_word_embeddings": True, "vocab_size": 51865, "d_model": 384,
        "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_layers": 4,
        "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "num_mel_bins": 80, "max_source_positions": 1500,
        "max_target_positions": 448,
    },
    reads=(_READS - {"scale_embedding"}) | {"num_mel_bins", "max_source_positions", "median_filter_width"},
    fixed={"is_encoder_decoder": True},
    # `scale_embedding` is read by no code of transformers, either
    ignores=_IGNORES
    | {
        "max_position_embeddings", "scale_embedding", "use_weighted_layer_sum", "classifier_proj_size",
        "apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob",
        "mask_feature_length", "mask_feature_min_masks", "max_length",
    },
)  # fmt: skip
BART = Family(
    _read_bart,
    aliases=_ALIASES,
    defaults={
        "activation_function": "gelu", "tie_word_embeddings": True, "vocab_size": 50265, "d_model": 1024,
        "encoder_layers": 12, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_layers": 12,
        "decoder_attention_heads": 16, "decoder_ffn_dim": 4096, "max_position_embeddings": 1024,
    },
    reads=_READS,
    fixed={
        "is_encoder_decoder": True, "normalize_before": False, "add_final_layer_norm": False, "add_bias_logits": False,
        "normalize_embedding": True, "static_position_embeddings": False,
    },
    ignores=_IGNORES | {"extra_pos_embeddings", "output_past", "force_bos_token_to_be_generated", "classif_dropout"},
)  # fmt: skip
