"""Reads how a model hears, or why it does not: then its text model is loaded alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lullm.config.family.dense import ACTIVATIONS
from lullm.config.family.text_model import OMNI_THINKER, PHI4
from lullm.config.field import (
    LARGEST_ID,
    MOST_HEADS,
    MOST_HIDDEN,
    MOST_INTERMEDIATE,
    MOST_LAYERS,
    Data,
    integer,
    optional_object,
    positive_int,
    shown,
)
from lullm.config.hearing.conformer import EXTRACTOR as FILTER_BANKS
from lullm.config.hearing.conformer import read_conformer
from lullm.config.hearing.hearing import HearingConfig
from lullm.config.json_file import processor_part
from lullm.config.layer.conformer import ConformerConfig
from lullm.config.layer.encoder import EncoderConfig
from lullm.config.rope import MOST_POSITIONS
from lullm.errors import ModelLoadError
from lullm.log import get_logger
from lullm.types.arithmetic import Activation

logger = get_logger(__name__)

_QWEN2_AUDIO = "Qwen2AudioForConditionalGeneration"
_VOXTRAL = "VoxtralForConditionalGeneration"
_EXTRACTED_S = 30
"""Seconds of a feature extractor whose file does not say them."""
_MOST_S = 3600
_TEXTS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_EPS = 1e-5
"""The epsilon of all norms of the encoders; the files lack it."""
_OMNI_SIZE = 3584
_MOST_MELS = 1 << 10
_EXTRACTOR = {"hop_length": 160, "n_fft": 400, "sampling_rate": 16_000, "dither": 0.0, "padding_value": 0.0}
"""What the features of `lullm.audio.features` are made with."""
_FRAMES_PER_S = 100.0
_QWEN_NAMES = {
    "hidden_size": "d_model", "num_hidden_layers": "encoder_layers", "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
}  # fmt: skip
"""A config's second names of keys."""
_DEFAULTS: Data = {
    "hidden_size": 1280, "num_hidden_layers": 32, "num_attention_heads": 20, "intermediate_size": 5120,
    "num_mel_bins": 128, "max_source_positions": 1500, "activation_function": "gelu",
}  # fmt: skip
"""The values of missing keys, for both kinds."""


def read_hearing(data: Data, folder: Path, text_architecture: str, vocab_size: int) -> tuple[HearingConfig | None, str]:
    """(how the model of a config.json hears; or None, why it does not). The second is empty for models of text.

    Args:
        data: of the whole model. text_architecture, vocab_size: of the text model.
    """
    names = data.get("architectures")
    architecture = names[0] if isinstance(names, list) and names else None
    kind = HEARS.get(architecture) if isinstance(architecture, str) else None
    if kind is None:
        return None, ""
    try:
        if text_architecture not in kind.texts:
            raise ModelLoadError(f"its text model is {text_architecture}")
        stated = optional_object(data, "audio_config")
        if stated.get("model_type", kind.encoder) != kind.encoder:
            raise ModelLoadError(f"audio_config: model_type is {shown(stated['model_type'])}, not {kind.encoder}")
        hearing = kind.read(data, stated)
        if not 0 <= hearing.audio_token_id < min(vocab_size, LARGEST_ID):
            raise ModelLoadError(f"its audio token {hearing.audio_token_id} is not in its vocabulary of {vocab_size}")
        if not hearing.window_rows:
            raise ModelLoadError(f"max_source_positions {hearing.encoder.max_rows} give no row of the decoder")
        parts = (processor_part(folder, name) for name in ("feature_extractor", "audio_processor"))
        return kind.with_extractor(hearing, next(filter(None, parts), {})), ""
    except ModelLoadError as error:
        logger.info("%s: only the text model is loaded; what hears is passed over: %s", architecture, error)
        return None, str(error)


def _encoder(stated: Data) -> tuple[int, EncoderConfig]:
    """(elements of its rows, the rest). Raises ModelLoadError."""
    own = dict(_DEFAULTS)
    for name in _DEFAULTS:
        given = [
            stated[key] for key in (name, _QWEN_NAMES.get(name)) if key is not None and stated.get(key) is not None
        ]
        if len(given) == 2 and given[0] != given[1]:
            raise ModelLoadError(
                f"audio_config: {name} is {shown(given[0])}, and {_QWEN_NAMES[name]} {shown(given[1])}"
            )
        own |= {name: given[0]} if given else {}
    size, heads = positive_int(own, "hidden_size", most=MOST_HIDDEN), positive_int(own, "num_attention_heads")
    if heads > MOST_HEADS or size % heads:
        raise ModelLoadError(f"audio_config: {size} elements are not for {heads} heads")
    return size, EncoderConfig(
        reads="audio",
        num_layers=positive_int(own, "num_hidden_layers", most=MOST_LAYERS),
        num_attention_heads=heads,
        intermediate_size=positive_int(own, "intermediate_size", most=MOST_INTERMEDIATE),
        activation=_activation(own, "activation_function"),
        layer_norm_eps=_EPS,
        max_rows=positive_int(own, "max_source_positions", most=MOST_POSITIONS),
        num_mels=positive_int(own, "num_mel_bins", most=_MOST_MELS),
    )


def _qwen2_audio(data: Data, stated: Data) -> HearingConfig:
    size, encoder = _encoder(stated)
    token_id = integer(data, "audio_token_index", integer(data, "audio_token_id", 151646))
    return HearingConfig(encoder, size, token_id, num_averaged=2)


def _voxtral(data: Data, stated: Data) -> HearingConfig:
    size, encoder = _encoder(stated)
    num_joined = encoder.intermediate_size // size  # the connector reads rows of `intermediate_size` elements
    if encoder.intermediate_size % size or encoder.max_rows % num_joined:
        raise ModelLoadError(
            f"audio_config: {encoder.max_rows} rows of {size} elements make no rows of {encoder.intermediate_size}"
        )
    return HearingConfig(
        encoder,
        size,
        integer(data, "audio_token_id", 24),
        num_joined=num_joined,
        connector_act=_activation({"projector_hidden_act": "gelu"} | data, "projector_hidden_act"),
        windows="filled",
    )


def _omni(data: Data, stated: Data) -> HearingConfig:
    size, encoder = _encoder(stated)
    stated = {"n_window": 100} | stated
    num_rows = positive_int(stated, "n_window", most=MOST_POSITIONS)
    if num_rows % 2:
        raise ModelLoadError(f"audio_config: n_window {num_rows} is odd: the mean of two rows is of two windows")
    if num_rows > encoder.max_rows:
        raise ModelLoadError(f"audio_config: n_window {num_rows} is above max_source_positions {encoder.max_rows}")
    hidden_size = optional_object(data, "text_config").get("hidden_size", _OMNI_SIZE)
    if (out_size := stated.get("output_dim", _OMNI_SIZE)) != hidden_size:
        raise ModelLoadError(f"audio_config: its rows have {shown(out_size)} elements, the text's {shown(hidden_size)}")
    token_id = integer(data, "audio_token_id", 151646)
    cut = replace(encoder, max_rows=num_rows, learns_positions=False)
    return HearingConfig(cut, size, token_id, num_averaged=2, windows="cut")


def _with_whispers(hearing: HearingConfig, stated: Data) -> HearingConfig:
    seconds = hearing.encoder.num_frames / _FRAMES_PER_S
    if hearing.windows == "cut":  # windows have nothing to do with it: it bounds the whole sound
        seconds = positive_int({"chunk_length": _EXTRACTED_S} | stated, "chunk_length", most=_MOST_S)
    _check_extractor(stated, ("Whisper",), _EXTRACTOR | {"chunk_length": seconds}, hearing.encoder.num_mels)
    return replace(hearing, most_frames=int(seconds * _FRAMES_PER_S))


def _with_filter_banks(hearing: HearingConfig, stated: Data) -> HearingConfig:
    assert isinstance(hearing.encoder, ConformerConfig)
    known = FILTER_BANKS | {"audio_compression_rate": hearing.encoder.stride}
    _check_extractor(stated, ("Phi4Multimodal", "Phi4MMAudio"), known, hearing.encoder.num_mels)
    return hearing


def _check_extractor(stated: Data, kinds: tuple[str, ...], known: Mapping[str, float], num_mels: int) -> None:
    """Raises ModelLoadError: the feature extractor makes others than those of `kinds`, or for another encoder."""
    names = [f"{kind}FeatureExtractor" for kind in kinds]
    if (name := stated.get("feature_extractor_type", names[0])) not in names:
        raise ModelLoadError(f"its feature extractor is {shown(name)}")
    for key, number in {**known, "feature_size": num_mels}.items():
        if stated.get(key, number) != number:
            raise ModelLoadError(f"{key} of its feature extractor is {shown(stated[key])}, not {number:g}")


@dataclass(frozen=True, slots=True)
class _Kind:
    """How an architecture hears.

    Args:
        encoder: its `model_type`. read: (config.json, its `audio_config`) -> the hearing.
        with_extractor: (the hearing, the feature extractor's keys) -> the hearing. Both raise ModelLoadError.
        texts: the text models that are known below it.
    """

    encoder: str
    read: Callable[[Data, Data], HearingConfig]
    with_extractor: Callable[[HearingConfig, Data], HearingConfig] = _with_whispers
    texts: tuple[str, ...] = _TEXTS


HEARS: Mapping[str, _Kind] = {
    _QWEN2_AUDIO: _Kind("qwen2_audio_encoder", _qwen2_audio),
    _VOXTRAL: _Kind("voxtral_encoder", _voxtral),
    OMNI_THINKER: _Kind("qwen2_5_omni_audio_encoder", _omni),
    PHI4: _Kind("phi4_multimodal_audio", read_conformer, _with_filter_banks, ("Phi3ForCausalLM",)),
}
"""The architectures that hear."""


def _activation(data: Mapping[str, Any], name: str) -> Activation:
    stated = data[name]
    if not isinstance(stated, str) or stated not in ACTIVATIONS:
        raise ModelLoadError(f"{name} is {shown(stated)}")
    return ACTIVATIONS[stated]
