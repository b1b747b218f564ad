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


OMNI_EAR = {
    "model_type": "qwen2_5_omni_audio_encoder", "activation_function": "gelu", "d_model": 1280, "encoder_layers": 32,
    "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "max_source_positions": 1500, "n_window": 100,
    "num_mel_bins": 128, "output_dim": 3584, "scale_embedding": False,
}  # fmt: skip
OMNI_TEXT = {
    "model_type": "qwen2_5_omni_text", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_key_value_heads": 4, "num_hidden_layers": 28, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"}, "vocab_size": 152064,
    "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 28,
}  # fmt: skip
OMNI = {
    "architectures": ["Qwen2_5OmniModel"], "enable_audio_output": True, "enable_talker": True,
    "model_type": "qwen2_5_omni", "torch_dtype": "bfloat16", "talker_config": {"hidden_size": 896},
    "token2wav_config": {"model_type": "qwen2_5_omni_token2wav"}, "thinker_config": {
        "architectures": ["Qwen2OmniNaViTThinkerForConditionalGeneration"], "audio_config": OMNI_EAR,
        "audio_end_token_id": 151648, "audio_start_token_id": 151647, "audio_token_index": 151646,
        "bos_token_id": 151644, "eos_token_id": 151645, "image_token_index": 151655, "pad_token_id": 151643,
        "position_id_per_seconds": 25, "seconds_per_chunk": 2, "text_config": OMNI_TEXT, "user_token_id": 872,
        "video_token_index": 151656, "vision_config": {
            "depth": 32, "embed_dim": 1280, "fullatt_block_indexes": [7, 15, 23, 31], "hidden_act": "silu",
            "hidden_size": 1280, "in_channels": 3, "in_chans": 3, "intermediate_size": 3420, "num_heads": 16,
            "model_type": "qwen2_5_omni_vision_encoder", "out_hidden_size": 3584, "patch_size": 14,
            "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2, "tokens_per_second": 25,
            "window_size": 112,
        },
    },
}  # fmt: skip
OMNI_PROCESSOR = EXTRACTOR | {
    "chunk_length": 300, "n_samples": 4800000, "nb_max_frames": 30000, "image_processor_type": "Qwen2VLImageProcessor",
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
    "max_pixels": 12845056, "merge_size": 2, "min_pixels": 3136, "patch_size": 14, "temporal_patch_size": 2,
    "processor_class": "Qwen2_5OmniProcessor",
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
    assert hearing.audio_token_id == 151646 and hearing.window_rows == 750 and hearing.windows == "one"
    assert [hearing.rows_of(frames) for frames in (1, 2, 3, 4, 5, 6, 7, 3000)] == [0, 0, 1, 1, 1, 1, 2, 750]


def test_voxtral(tmp_path):
    config = read(tmp_path, VOXTRAL, None)
    hearing = config.hearing
    assert (config.hidden_size, config.num_hidden_layers, config.num_key_value_heads) == (3072, 30, 8)
    assert config.vocab_size == 131072 and config.head_dim == 128
    assert hearing.num_joined == 4 and hearing.window_rows == 375 and hearing.windows == "filled"
    assert hearing.connector_act == "gelu" and hearing.audio_token_id == 24


def test_qwen2_5_omni(tmp_path):
    """As published: one file for what sees and hears, and frames with the bounds of transformers' processor."""
    config = read(tmp_path, OMNI, OMNI_PROCESSOR)
    hearing, vision = config.hearing, config.vision
    assert (config.hidden_size, config.num_hidden_layers, config.dtype) == (3584, 28, "bfloat16")
    assert config.eos_token_ids == (151645,) and not config.unknown_keys and not config.tie_word_embeddings
    assert (hearing.windows, hearing.most_frames, hearing.window_rows) == ("cut", 30_000, 50)
    assert hearing.audio_token_id == 151646 and not hearing.encoder.learns_positions
    assert vision.image_token_id == 151655 and not vision.tower.is_fused and vision.picture.max_pixels == 12845056
    video = vision.video
    assert (video.token_id, video.positions_per_second, video.is_nominal) == (151656, 25, True)
    assert (video.form.frame.min_pixels, video.form.frame.max_pixels) == (128 * 28 * 28, 768 * 28 * 28)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_window": 99}, "n_window 99 is odd"),
        ({"n_window": 1600}, "n_window 1600 is above max_source_positions 1500"),
        ({"output_dim": 2048}, "its rows have 2048 elements, the text's 3584"),
        ({"model_type": "qwen2_audio_encoder"}, "not qwen2_5_omni_audio_encoder"),
    ],
)
def test_an_omni_that_sees_alone(tmp_path, change, words):
    thinker = OMNI["thinker_config"] | {"audio_config": OMNI_EAR | change}
    config = read(tmp_path, OMNI | {"thinker_config": thinker}, OMNI_PROCESSOR)
    assert config.hearing is None and words in config.no_hearing and config.vision is not None


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
