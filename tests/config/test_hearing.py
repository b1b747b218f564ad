"""What folders say about sounds in prompts: read, or a reason to load the text model alone."""

import json

import pytest

from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError

ENCODER = {
    "d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layerdrop": 0.0,
    "encoder_layers": 32, "max_source_positions": 1500, "model_type": "qwen2_audio_encoder", "num_mel_bins": 128,
    "num_hidden_layers": 32, "scale_embedding": False, "activation_function": "gelu",
}  # fmt: skip
QWEN = {
    "architectures": ["Qwen2AudioForConditionalGeneration"], "audio_token_index": 151646, "ignore_index": -100,
    "audio_config": ENCODER, "model_type": "qwen2_audio", "vocab_size": 156032,
    "text_config": {
        "bos_token_id": 151643, "eos_token_id": 151645, "intermediate_size": 11008, "max_position_embeddings": 8192,
        "model_type": "qwen2", "rms_norm_eps": 1e-05, "rope_theta": 10000, "torch_dtype": "bfloat16",
        "use_mrope": False, "vocab_size": 156032,
    },
}  # fmt: skip
VOXTRAL = {
    "architectures": ["VoxtralForConditionalGeneration"], "audio_token_id": 24, "model_type": "voxtral",
    "projector_hidden_act": "gelu", "hidden_size": 3072, "vocab_size": 131072,
    "audio_config": {
        "activation_function": "gelu", "hidden_size": 1280, "intermediate_size": 5120, "max_source_positions": 1500,
        "model_type": "voxtral_encoder", "num_attention_heads": 20, "num_hidden_layers": 32, "num_key_value_heads": 20,
        "num_mel_bins": 128, "head_dim": 64, "vocab_size": 51866,
    },
    "text_config": {"model_type": "llama", "head_dim": 128, "num_attention_heads": 32},
}  # fmt: skip
EXTRACTOR = {
    "chunk_length": 30, "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "hop_length": 160,
    "n_fft": 400, "n_samples": 480000, "nb_max_frames": 3000, "padding_side": "right", "padding_value": 0.0,
    "return_attention_mask": True, "sampling_rate": 16000, "dither": 0.0,
}  # fmt: skip


def read(tmp_path, data, extractor=EXTRACTOR, name="preprocessor_config.json"):
    (tmp_path / "config.json").write_text(json.dumps(data))
    if extractor is not None:
        (tmp_path / name).write_text(json.dumps(extractor))
    return ModelConfig.from_folder(tmp_path)


def test_qwen2_audio(tmp_path):
    config = read(tmp_path, QWEN)
    hearing = config.hearing
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (4096, 32, 32)
    assert config.vocab_size == 156032 and not config.unknown_keys
    assert (hearing.encoder_size, hearing.encoder.num_layers, hearing.encoder.num_mels) == (1280, 32, 128)
    assert hearing.audio_token_id == 151646 and hearing.window_rows == 750 and not hearing.fills_windows
    assert [hearing.rows_of(frames) for frames in (1, 2, 3, 4, 5, 6, 7, 3000)] == [0, 0, 1, 1, 1, 1, 2, 750]


def test_voxtral(tmp_path):
    config = read(tmp_path, VOXTRAL, None)
    hearing = config.hearing
    assert (config.hidden_size, config.num_hidden_layers, config.num_key_value_heads) == (3072, 30, 8)
    assert config.vocab_size == 131072 and config.head_dim == 128
    assert hearing.num_joined == 4 and hearing.window_rows == 375 and hearing.fills_windows
    assert hearing.connector_act == "gelu" and hearing.audio_token_id == 24


def test_the_extractor_of_a_processor(tmp_path):
    config = read(tmp_path, QWEN, {"feature_extractor": EXTRACTOR | {"feature_size": 80}}, "processor_config.json")
    assert config.no_hearing == "feature_size of its feature extractor is 80, not 128"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "whisper"}, "model_type is 'whisper'"),
        ({"activation_function": "tanh"}, "activation_function is 'tanh'"),
        ({"num_hidden_layers": 30}, "num_hidden_layers is 30, and encoder_layers 32"),
        ({"encoder_attention_heads": 3}, "1280 elements are not for 3 heads"),
        ({"max_source_positions": 1}, "give no row"),
        ({"max_source_positions": 750}, "chunk_length of its feature extractor is 30, not 15"),
        ({"num_mel_bins": "many"}, "num_mel_bins"),
    ],
)
def test_an_encoder_that_is_not_read(tmp_path, change, words):
    config = read(tmp_path, QWEN | {"audio_config": ENCODER | change})
    assert config.hearing is None and words in config.no_hearing and config.hidden_size == 4096


@pytest.mark.parametrize(
    ("data", "extractor", "words"),
    [
        (QWEN | {"audio_token_index": 156032}, EXTRACTOR, "is not in its vocabulary"),
        (QWEN, EXTRACTOR | {"feature_extractor_type": "ClapFeatureExtractor"}, "feature extractor is 'Clap"),
        (QWEN, EXTRACTOR | {"hop_length": 200}, "hop_length of its feature extractor is 200, not 160"),
        (QWEN, EXTRACTOR | {"dither": 0.1}, "dither"),
        (VOXTRAL | {"projector_hidden_act": "tanh"}, EXTRACTOR, "projector_hidden_act is 'tanh'"),
        (VOXTRAL | {"audio_config": VOXTRAL["audio_config"] | {"intermediate_size": 5000}}, EXTRACTOR, "make no rows"),
    ],
)
def test_a_folder_that_is_not_read(tmp_path, data, extractor, words):
    assert words in read(tmp_path, data, extractor).no_hearing


def test_a_text_model_that_is_not_known(tmp_path):
    with pytest.raises(ModelLoadError, match="Qwen2AudioForConditionalGeneration of mamba"):
        read(tmp_path, QWEN | {"text_config": {"model_type": "mamba"}})
