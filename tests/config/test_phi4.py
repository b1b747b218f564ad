"""What folders of Phi-4-multimodal say about pictures and sounds: read, or a reason to load the text model alone."""

import json

import pytest

from lullm.config.hearing.hearing import HearingConfig
from lullm.config.layer.conformer import ConformerConfig
from lullm.config.model import ModelConfig
from lullm.config.vision.vision import MosaicConnector
from lullm.errors import ModelLoadError
from lullm.types.vision.grid import SquareGrid

TEXT = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 199999, "embd_pdrop": 0.0,
    "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
    "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": False, "max_position_embeddings": 131072,
    "mlp_bias": False, "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "original_max_position_embeddings": 4096, "pad_token_id": 199999, "partial_rotary_factor": 0.75,
    "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 200064,
    "rope_scaling": {"long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
}  # fmt: skip
ENCODER = {
    "activation": "swish", "activation_checkpointing": {"interval": 1, "module": "transformer", "offload": False},
    "attention_dim": 1024, "attention_heads": 16, "batch_norm": False, "bias_in_glu": True, "causal": True,
    "chunk_size": -1, "cnn_layer_norm": True, "conv_activation": "swish", "conv_glu_type": "swish",
    "depthwise_multiplier": 1, "depthwise_seperable_out_channel": 1024, "dropout_rate": 0.0,
    "encoder_embedding_config": {"input_size": 80}, "ext_pw_kernel_size": 1, "ext_pw_out_channel": 1024,
    "input_layer": "nemo_conv", "input_size": 80, "kernel_size": 3, "left_chunk": 18, "linear_units": 1536,
    "nemo_conv_settings": {"conv_channels": 1024}, "num_blocks": 24,
    "relative_attention_bias_args": {"t5_bias_max_distance": 500, "type": "t5"}, "time_reduction": 8,
}  # fmt: skip
OF_PICTURES = {
    "crop_size": 448, "embedding_cls": "tune_image", "enable_gradient_checkpointing": True,
    "hd_transform_order": "sub_glb", "image_token_compression_cls": "avg_pool_2d", "projection_cls": "mlp",
    "use_hd_transform": True, "with_learnable_separator": True,
}  # fmt: skip
OF_SOUNDS = {
    "compression_rate": 8, "downsample_rate": 1, "embedding_cls": "audio", "enable_gradient_checkpointing": True,
    "projection_cls": "mlp", "use_conv_downsample": False, "use_qformer": False,
}  # fmt: skip
PUBLISHED = TEXT | {
    "architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm", "img_processor": None,
    "auto_map": {"AutoConfig": "configuration_phi4mm.Phi4MMConfig"},
    "audio_processor": {"config": ENCODER, "name": "cascades"},
    "embd_layer": {
        "audio_embd_layer": OF_SOUNDS, "embedding_cls": "image_audio", "image_embd_layer": OF_PICTURES,
    },
    "speech_lora": {"dp": 0.01, "layer": "layers.*", "lora_alpha": 640, "r": 320},
    "vision_lora": {"dp": 0.0, "layer": "layers.*", "lora_alpha": 512, "r": 256},
}  # fmt: skip
PUBLISHED_PROCESSOR = {
    "auto_map": {"AutoProcessor": "processing_phi4mm.Phi4MMProcessor"}, "audio_compression_rate": 8,
    "audio_downsample_rate": 1, "audio_feat_stride": 1, "dynamic_hd": 36, "processor_class": "Phi4MMProcessor",
    "feature_extractor_type": "Phi4MMAudioFeatureExtractor", "image_processor_type": "Phi4MMImageProcessor",
}  # fmt: skip
CONVERTED = TEXT | {
    "architectures": ["Phi4MultimodalForCausalLM"], "model_type": "phi4_multimodal",
    "audio_config": {
        "model_type": "phi4_multimodal_audio", "bias_max_distance": 500, "nemo_final_size": 10,
        "audio_token_id": 200011,
    },
    "vision_config": {"model_type": "phi4_multimodal_vision", "image_token_id": 200010, "feature_layer": -2},
}  # fmt: skip
PROCESSOR = {
    "image_processor_type": "Phi4MultimodalImageProcessorFast", "size": {"height": 448, "width": 448}, "dynamic_hd": 36,
    "feature_extractor_type": "Phi4MultimodalFeatureExtractor", "feature_size": 80, "hop_length": 160, "n_fft": 512,
    "win_length": 400, "preemphasis": 0.97, "audio_compression_rate": 8, "patch_size": 14, "resample": 3,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "sampling_rate": 16000,
}  # fmt: skip
READ = ConformerConfig(
    24, 16, 1536, 80, 8, 1024, "silu", "relu", "silu", "silu", kernel_size=3, num_filters=1, max_distance=500
)


def read(folder, data, processor):
    (folder / "config.json").write_text(json.dumps(data))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return ModelConfig.from_folder(folder)


@pytest.mark.parametrize(
    ("data", "processor"), [(PUBLISHED, PUBLISHED_PROCESSOR), (CONVERTED, PROCESSOR)], ids=["published", "converted"]
)
def test_read(tmp_path, data, processor, caplog):
    config = read(tmp_path, data, processor)
    assert (config.architecture, config.num_hidden_layers, config.head_dim) == ("Phi3ForCausalLM", 32, 128)
    assert config.tie_word_embeddings and config.unknown_keys == () and not caplog.records
    vision, hearing = config.vision, config.hearing
    assert (vision.tower.num_layers, vision.tower.hidden_size, vision.tower.num_sides) == (26, 1152, 32)
    assert vision.connector == MosaicConnector(2) and (vision.image_token_id, hearing.audio_token_id) == (
        200010,
        200011,
    )
    assert vision.rows_of(448, 448, SquareGrid(1, 1, 448, 448, is_cornered=True)) == 545
    assert vision.rows_of(448 * 36, 448, SquareGrid(36, 1, 448, 448 * 36, is_cornered=True)) == 10_065
    assert isinstance(hearing, HearingConfig) and hearing.encoder == READ and hearing.encoder_size == 1024
    assert hearing.rows_of_sound(3000) == 375 and vision.picture.largest(1) == (448, 36 * 448)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"name": "whisper"}, "audio_processor: name is 'whisper'"),
        ({"config": ENCODER | {"causal": False}}, "causal is False"),
        ({"config": ENCODER | {"relative_attention_bias_args": {"type": "alibi"}}}, "type is 'alibi'"),
    ],
)
def test_others_of_the_published_form(tmp_path, part, reason):
    with pytest.raises(ModelLoadError, match=reason):
        read(tmp_path, PUBLISHED | {"audio_processor": PUBLISHED["audio_processor"] | part}, PUBLISHED_PROCESSOR)


@pytest.mark.parametrize(
    ("stated", "processor", "reason"),
    [
        ({"chunk_size": 18}, {}, "chunk_size is 18, and only -1"),
        ({"bias_symmetric": True}, {}, "bias_symmetric is True, and only False"),
        ({"downsample_rate": 2}, {}, "downsample_rate is 2, and only 1"),
        ({"ext_pw_out_channel": 512}, {}, "ext_pw_out_channel is 512, and only 1024"),
        ({"time_reduction": 6}, {}, "time_reduction 6 is no power of 2"),
        ({"num_attention_heads": 7}, {}, "1024 elements are not for 7 heads"),
        ({"activation": "mish"}, {}, "activation 'mish'"),
        ({"model_type": "whisper"}, {}, "model_type is 'whisper'"),
        ({"audio_token_id": 1 << 20}, {}, "not in its vocabulary"),
        ({}, {"n_fft": 400}, "n_fft of its feature extractor is 400, not 512"),
        ({}, {"audio_compression_rate": 4}, "audio_compression_rate of its feature extractor is 4, not 8"),
        ({}, {"feature_extractor_type": "WhisperFeatureExtractor"}, "its feature extractor is 'Whisper"),
    ],
    ids=str,
)
def test_sounds_that_are_passed_over(tmp_path, stated, processor, reason):
    data = CONVERTED | {"audio_config": CONVERTED["audio_config"] | stated}
    config = read(tmp_path, data, PROCESSOR | processor)
    assert config.hearing is None and reason in config.no_hearing and config.vision is not None


@pytest.mark.parametrize(
    ("stated", "processor", "reason"),
    [
        (
            {"image_size": 336},
            {},
            "its tower reads 336 pixels in patches of 14",
        ),
        ({"patch_size": 64}, {"patch_size": 64}, "no even number of them"),
        ({"crop_size": 336}, {}, "crop_size 336 is not its image processor's 448"),
        ({}, {"patch_size": 16}, "patch_size 16 of its image processor is not the tower's 14"),
        ({}, {"resample": 2}, "resample 2 of its image processor is not 3"),
        ({}, {"dynamic_hd": 0}, "dynamic_hd 0"),
        ({}, {"image_processor_type": "SiglipImageProcessor"}, "is not Phi-4-multimodal's"),
        ({"feature_layer": [1]}, {}, "is not one layer"),
    ],
    ids=str,
)
def test_pictures_that_are_passed_over(tmp_path, stated, processor, reason):
    data = CONVERTED | {"vision_config": CONVERTED["vision_config"] | stated}
    config = read(tmp_path, data, PROCESSOR | processor)
    assert config.vision is None and reason in config.no_vision and config.hearing is not None
