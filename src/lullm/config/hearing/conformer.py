"""Reads how Phi-4-multimodal hears (https://arxiv.org/abs/2503.01743)."""

from lullm.config.family.dense import activation
from lullm.config.field import (
    MOST_HEADS,
    MOST_HIDDEN,
    MOST_INTERMEDIATE,
    MOST_LAYERS,
    Data,
    integer,
    positive_int,
    shown,
)
from lullm.config.hearing.hearing import HearingConfig
from lullm.config.layer.conformer import ConformerConfig
from lullm.errors import ModelLoadError

_AUDIO_TOKEN_ID = 200011
_DEFAULTS: Data = {
    "hidden_size": 1024, "intermediate_size": 1536, "num_blocks": 24, "num_attention_heads": 16, "activation": "swish",
    "chunk_size": -1, "depthwise_multiplier": 1, "kernel_size": 3, "conv_activation": "swish", "input_size": 80,
    "conv_glu_type": "swish", "time_reduction": 8, "bias_max_distance": 1000, "bias_symmetric": False,
    "nemo_activation": "relu", "nemo_conv_channels": 1024, "downsample_rate": 1,
    "ext_pw_out_channel": 1024, "depthwise_separable_out_channel": 1024,
}  # fmt: skip
_AS_WIDE = ("ext_pw_out_channel", "depthwise_separable_out_channel")
_FIXED = {"chunk_size": -1, "downsample_rate": 1, "bias_symmetric": False}
_MOST_STRIDE, _MOST_WIDTH, _MOST_FILTERS, _MOST_MELS, _MOST_DISTANCE = 64, 128, 16, 1 << 10, 1 << 16
EXTRACTOR = {
    "sampling_rate": 16_000, "hop_length": 160, "n_fft": 512, "win_length": 400,
    "preemphasis": 0.97, "padding_value": 0.0, "audio_downsample_rate": 1,
    "audio_feat_stride": 1, "mel_min_frequency": 0, "mel_max_frequency": 7690,
}  # fmt: skip
"""What `lullm.audio.filter_banks` does, and rows that are counted as they are."""


def read_conformer(_data: Data, stated: Data) -> HearingConfig:
    """`stated`: the `audio_config`. Raises ModelLoadError."""
    own = {**_DEFAULTS, **{key: value for key, value in stated.items() if value is not None}}
    size, heads = positive_int(own, "hidden_size", most=MOST_HIDDEN), positive_int(own, "num_attention_heads")
    if heads > MOST_HEADS or size % heads:
        raise ModelLoadError(f"audio_config: {size} elements are not for {heads} heads")
    for name, value in {**_FIXED, **dict.fromkeys(_AS_WIDE, size)}.items():
        if own[name] != value:
            raise ModelLoadError(f"audio_config: {name} is {shown(own[name])}, and only {value} is implemented")
    stride = positive_int(own, "time_reduction", most=_MOST_STRIDE)
    if stride < 2 or stride & (stride - 1):
        raise ModelLoadError(f"audio_config: time_reduction {stride} is no power of 2")
    encoder = ConformerConfig(
        num_layers=positive_int(own, "num_blocks", most=MOST_LAYERS),
        num_attention_heads=heads,
        intermediate_size=positive_int(own, "intermediate_size", most=MOST_INTERMEDIATE),
        num_mels=positive_int(own, "input_size", most=_MOST_MELS),
        stride=stride,
        num_channels=positive_int(own, "nemo_conv_channels", most=MOST_HIDDEN),
        activation=activation(own, "activation"),
        stem_activation=activation(own, "nemo_activation"),
        gate_activation=activation(own, "conv_glu_type"),
        conv_activation=activation(own, "conv_activation"),
        kernel_size=positive_int(own, "kernel_size", most=_MOST_WIDTH),
        num_filters=positive_int(own, "depthwise_multiplier", most=_MOST_FILTERS),
        max_distance=positive_int(own, "bias_max_distance", most=_MOST_DISTANCE),
    )
    token_id = integer(own, "audio_token_id", _AUDIO_TOKEN_ID)
    return HearingConfig(
        encoder,
        size,
        token_id,
        windows="whole",
        features="filter_banks",
        tells_pictures=True,
        spells="",
        numbered=r"<\|audio_\d+\|>",
    )
