"""What folders say about pictures: read, or a reason to load the text model alone."""

import json

import pytest

from lullm.config.model import ModelConfig
from lullm.config.vision.vision import (
    GatedConnector,
    MeanConnector,
    MergeConnector,
    MLPConnector,
    PoolConnector,
    ShuffleConnector,
)
from lullm.errors import FamilyLimitError, ModelLoadError
from lullm.types.vision.grid import SquareGrid

TEXT = {
    "model_type": "llama", "vocab_size": 32064, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip
LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 32000, "ignore_index": -100,
    "text_config": TEXT, "projector_hidden_act": "gelu", "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default", "tie_word_embeddings": False,
    "vision_config": {
        "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
        "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
        "vocab_size": 32000,
    },
}  # fmt: skip
LLAVA_PICTURES = {
    "crop_size": {"height": 336, "width": 336}, "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True,
    "do_rescale": True, "do_resize": True, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "CLIPImageProcessor", "image_std": [0.26862954, 0.26130258, 0.27577711],
    "processor_class": "LlavaProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": 336},
}  # fmt: skip
SMOL = {
    "architectures": ["SmolVLMForConditionalGeneration"], "image_token_id": 31990, "scale_factor": 3,
    "text_config": TEXT, "tie_word_embeddings": False,
    "vision_config": {
        "hidden_size": 1152, "image_size": 384, "intermediate_size": 4304, "max_image_size": {"longest_edge": 384},
        "model_type": "smolvlm_vision", "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
        "size": {"longest_edge": 1920}, "use_base_siglip": False,
    },
}  # fmt: skip
SMOL_PICTURES = {
    "do_convert_rgb": True, "do_image_splitting": True, "do_normalize": True, "do_pad": True, "do_rescale": True,
    "do_resize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 1,
    "image_processor_type": "SmolVLMImageProcessor", "max_image_size": {"longest_edge": 384},
    "rescale_factor": 0.00392156862745098, "size": {"longest_edge": 1536},
}  # fmt: skip

INTERN = {
    "architectures": ["InternVLForConditionalGeneration"], "downsample_ratio": 0.5, "image_seq_length": 256,
    "image_token_id": 31990, "model_type": "internvl", "projector_hidden_act": "gelu",
    "text_config": TEXT | {"model_type": "qwen2"}, "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
    "vision_config": {
        "architectures": ["InternVisionModel"], "attention_bias": True, "attention_dropout": 0.0, "dropout": 0.0,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 1024, "image_size": [448, 448],
        "initializer_factor": 0.1, "initializer_range": 1e-10, "intermediate_size": 4096, "layer_norm_eps": 1e-06,
        "layer_scale_init_value": 0.1, "model_type": "internvl_vision", "norm_type": "layer_norm",
        "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24, "patch_size": [14, 14],
        "projection_dropout": 0.0, "use_absolute_position_embeddings": True, "use_mask_token": False,
        "use_mean_pooling": True, "use_qk_norm": False,
    },
}  # fmt: skip
INTERN_PICTURES = {
    "crop_size": None, "crop_to_patches": False, "default_to_square": True, "do_center_crop": None,
    "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
    "image_mean": [0.485, 0.456, 0.406], "image_processor_type": "GotOcr2ImageProcessorFast",
    "image_std": [0.229, 0.224, 0.225], "max_patches": 12, "min_patches": 1, "processor_class": "InternVLProcessor",
    "resample": 3, "rescale_factor": 0.00392156862745098, "size": {"height": 448, "width": 448},
}  # fmt: skip

QWEN = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 64, "image_token_id": 31990, "initializer_range": 0.02,
    "intermediate_size": 96, "max_position_embeddings": 4096, "max_window_layers": 2, "model_type": "qwen2_5_vl",
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_scaling": {"mrope_section": [2, 3, 3], "type": "mrope"}, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": True, "use_cache": True, "use_sliding_window": False, "video_token_id": 31991,
    "vision_config": {
        "depth": 32, "fullatt_block_indexes": [7, 15, 23, 31], "hidden_act": "silu", "hidden_size": 1280,
        "in_chans": 3, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 64, "patch_size": 14,
        "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2, "tokens_per_second": 2,
        "window_size": 112,
    },
    "vision_end_token_id": 31993, "vision_start_token_id": 31992, "vision_token_id": 31994, "vocab_size": 32064,
}  # fmt: skip
QWEN2 = QWEN | {
    "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
    "vision_config": {
        "depth": 32, "embed_dim": 1280, "hidden_size": 64, "in_channels": 3, "in_chans": 3, "mlp_ratio": 4,
        "model_type": "qwen2_vl", "num_heads": 16, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    },
}  # fmt: skip
QWEN3 = {
    "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 31990, "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "dtype": "bfloat16", "eos_token_id": 2,
        "head_dim": 16, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 96,
        "max_position_embeddings": 4096, "model_type": "qwen3_vl_text", "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
        "rope_theta": 5000000, "tie_word_embeddings": True, "use_cache": True, "vocab_size": 32064,
    },
    "tie_word_embeddings": True, "transformers_version": "4.57.0.dev0", "video_token_id": 31991,
    "vision_config": {
        "deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1024,
        "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4096, "model_type": "qwen3_vl",
        "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 64, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
    "vision_end_token_id": 31993, "vision_start_token_id": 31992,
}  # fmt: skip
QWEN3_5 = QWEN3 | {
    "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
    "text_config": {
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "dtype": "bfloat16",
        "eos_token_id": 2, "full_attention_interval": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 64,
        "initializer_range": 0.02, "intermediate_size": 96, "layer_types": ["linear_attention", "full_attention"],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_value_head_dim": 16, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 4096, "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False, "num_attention_heads": 4, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "use_cache": True, "vocab_size": 32064,
        "rope_parameters": {
            "mrope_interleaved": True, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5, "rope_theta": 1e7,
            "rope_type": "default",
        },
    },
    "vision_config": QWEN3["vision_config"] | {"deepstack_visual_indexes": [], "model_type": "qwen3_5"},
}  # fmt: skip
QWEN3_PICTURES = {
    "image_mean": [0.5, 0.5, 0.5], "image_processor_type": "Qwen2VLImageProcessorFast", "image_std": [0.5, 0.5, 0.5],
    "merge_size": 2, "patch_size": 16, "processor_class": "Qwen3VLProcessor",
    "size": {"longest_edge": 16777216, "shortest_edge": 65536}, "temporal_patch_size": 2,
}  # fmt: skip
QWEN_PICTURES = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_processor_type": "Qwen2VLImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711], "max_pixels": 12845056, "merge_size": 2, "min_pixels": 3136,
    "patch_size": 14, "processor_class": "Qwen2_5_VLProcessor", "temporal_patch_size": 2,
}  # fmt: skip
GLM = {
    "architectures": ["Glm4vForConditionalGeneration"], "image_end_token_id": 31992, "image_start_token_id": 31991,
    "image_token_id": 31990, "model_type": "glm4v", "tie_word_embeddings": False, "video_end_token_id": 31994,
    "video_start_token_id": 31993, "video_token_id": 31995,
    "text_config": {
        "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": [1, 2], "hidden_act": "silu",
        "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 96, "max_position_embeddings": 4096,
        "model_type": "glm4v_text", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "pad_token_id": 0, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05,
        "rope_scaling": {"mrope_section": [1, 1, 2], "type": "default"}, "rope_theta": 10000.0, "use_cache": True,
        "vocab_size": 32064,
    },
    "vision_config": {
        "attention_bias": False, "attention_dropout": 0.0, "depth": 24, "hidden_act": "silu",
        "hidden_dropout_prob": 0.0, "hidden_size": 1536, "image_size": 336, "in_channels": 3, "initializer_range": 0.02,
        "intermediate_size": 13696, "model_type": "glm4v", "num_heads": 12, "out_hidden_size": 64, "patch_size": 14,
        "rms_norm_eps": 1e-05, "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip
GLM_EXPERTS = GLM | {
    "architectures": ["Glm4vMoeForConditionalGeneration"], "model_type": "glm4v_moe",
    "text_config": GLM["text_config"] | {
        "first_k_dense_replace": 1, "model_type": "glm4v_moe_text", "moe_intermediate_size": 32, "n_group": 1,
        "n_routed_experts": 4, "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.0, "topk_group": 1, "use_qk_norm": False, "head_dim": 16,
    },
    "vision_config": GLM["vision_config"] | {"model_type": "glm4v_moe"},
}  # fmt: skip
GLM_PICTURES = {
    "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_processor_type": "Glm4vImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711], "merge_size": 2, "patch_size": 14,
    "processor_class": "Glm4vProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
    "size": {"longest_edge": 9633792, "shortest_edge": 12544}, "temporal_patch_size": 2,
}  # fmt: skip
BOUNDS = {"min_pixels": None, "max_pixels": None}

MOE = {
    "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "num_local_experts": 4,
}  # fmt: skip


GEMMA4 = {
    "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": {"model_type": "gemma4_audio"},
    "boi_token_id": 31991, "eoi_token_id": 31992, "image_token_id": 31990, "model_type": "gemma4",
    "text_config": {
        "hidden_size": 64, "intermediate_size": 96, "model_type": "gemma4_text", "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32, "vocab_size": 32064,
        "vocab_size_per_layer_input": 32064, "hidden_size_per_layer_input": 8,
        "layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0,
    },
    "vision_config": {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 131072,
        "model_type": "gemma4_vision", "num_attention_heads": 12, "num_hidden_layers": 16, "num_key_value_heads": 12,
        "patch_size": 16, "pooling_kernel_size": 3, "position_embedding_size": 10240, "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}, "standardize": False,
        "use_clipped_linears": True,
    },
}  # fmt: skip
GEMMA4_IMAGES = {
    "do_convert_rgb": True, "do_normalize": False, "do_rescale": True, "do_resize": True, "image_mean": [0.0, 0.0, 0.0],
    "image_processor_type": "Gemma4ImageProcessor", "image_seq_length": 280, "image_std": [1.0, 1.0, 1.0],
    "max_soft_tokens": 280, "patch_size": 16, "pooling_kernel_size": 3, "resample": 3,
    "rescale_factor": 0.00392156862745098,
}  # fmt: skip
GEMMA4_PICTURES = {"image_processor": GEMMA4_IMAGES, "processor_class": "Gemma4Processor"}
PADDLE = {
    "architectures": ["PaddleOCRVLForConditionalGeneration"], "compression_ratio": 1.0, "head_dim": 128,
    "hidden_act": "silu", "hidden_dropout_prob": 0.0, "hidden_size": 1024, "image_token_id": 100295,
    "intermediate_size": 3072, "max_position_embeddings": 131072, "max_sequence_length": None,
    "model_type": "paddleocr_vl", "num_attention_heads": 16, "num_hidden_layers": 18, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05, "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"},
    "rope_theta": 500000, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_bias": False, "vision_start_token_id": 101305, "vocab_size": 103424, "video_token_id": 101307,
    "vision_config": {
        "architectures": ["SiglipVisionModel"], "attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1152, "image_size": 384, "intermediate_size": 4304, "layer_norm_eps": 1e-06,
        "model_type": "paddleocr_vl", "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 27,
        "pad_token_id": 0, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "tokens_per_second": 2, "torch_dtype": "bfloat16",
    },
}  # fmt: skip
PADDLE_PICTURES = {
    "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "PaddleOCRVLImageProcessor", "image_std": [0.5, 0.5, 0.5], "max_pixels": 2822400,
    "merge_size": 2, "min_pixels": 147384, "patch_size": 14, "resample": 3, "rescale_factor": 0.00392156862745098,
    "temporal_patch_size": 1,
}  # fmt: skip
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 31991, "eoi_token_index": 31992,
    "eos_token_id": [1, 106], "image_token_index": 31990, "mm_tokens_per_image": 256, "model_type": "gemma3",
    "text_config": {
        "hidden_size": 64, "intermediate_size": 96, "model_type": "gemma3_text", "num_hidden_layers": 2,
        "sliding_window": 1024, "vocab_size": 32064,
    },
    "vision_config": {
        "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
        "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
    },
}  # fmt: skip
GEMMA3_PICTURES = {
    "do_convert_rgb": None, "do_normalize": True, "do_pan_and_scan": None, "do_rescale": True, "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5], "image_processor_type": "Gemma3ImageProcessor", "image_seq_length": 256,
    "image_std": [0.5, 0.5, 0.5], "pan_and_scan_max_num_crops": None, "pan_and_scan_min_crop_size": None,
    "pan_and_scan_min_ratio_to_activate": None, "processor_class": "Gemma3Processor", "resample": 2,
    "rescale_factor": 0.00392156862745098, "size": {"height": 896, "width": 896},
}  # fmt: skip

PIXTRAL_TOWER = {
    "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024, "image_size": 1024, "intermediate_size": 4096,
    "is_composition": True, "model_type": "pixtral", "num_attention_heads": 16, "num_hidden_layers": 24,
    "patch_size": 16, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
PIXTRAL = {
    "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_seq_length": 1,
    "image_token_index": 10, "model_type": "llava", "projector_hidden_act": "gelu",
    "text_config": TEXT | {"model_type": "mistral", "sliding_window": None}, "vision_config": PIXTRAL_TOWER,
    "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
}  # fmt: skip
PIXTRAL_PICTURES = {
    "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_processor_type": "PixtralImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711], "patch_size": {"height": 16, "width": 16},
    "processor_class": "PixtralProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
    "size": {"longest_edge": 1024},
}  # fmt: skip
MISTRAL3 = {
    "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
    "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2,
    "text_config": PIXTRAL["text_config"], "vision_feature_layer": -1,
    "vision_config": PIXTRAL_TOWER | {"image_size": 1540, "patch_size": 14},
}  # fmt: skip
MISTRAL3_PICTURES = PIXTRAL_PICTURES | {"patch_size": 14, "size": {"longest_edge": 1540}}

GRIDS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
NEXT = LLAVA | {
    "architectures": ["LlavaNextForConditionalGeneration"], "image_grid_pinpoints": GRIDS, "image_seq_length": 576,
    "image_token_index": 32000, "model_type": "llava_next", "use_image_newline_parameter": True,
    "text_config": TEXT | {"model_type": "mistral", "sliding_window": None},
}  # fmt: skip
NEXT_PICTURES = LLAVA_PICTURES | {
    "aspect_ratio_setting": "anyres", "do_pad": True, "image_grid_pinpoints": GRIDS,
    "image_processor_type": "LlavaNextImageProcessor", "processor_class": "LlavaNextProcessor",
}  # fmt: skip
WIDE_GRIDS = [[384 * lines, 384 * columns] for lines in range(1, 7) for columns in range(1, 7)]
ONEVISION = {
    "architectures": ["LlavaOnevisionForConditionalGeneration"], "image_grid_pinpoints": WIDE_GRIDS,
    "image_token_index": 31990, "model_type": "llava_onevision", "projector_hidden_act": "gelu",
    "text_config": TEXT | {"model_type": "qwen2"}, "tie_word_embeddings": False, "use_image_newline_parameter": True,
    "video_token_index": 31991, "vision_aspect_ratio": "anyres_max_9", "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "vision_config": {
        "hidden_size": 1152, "image_size": 384, "intermediate_size": 4304, "model_type": "siglip_vision_model",
        "num_attention_heads": 16, "num_hidden_layers": 26, "patch_size": 14, "vision_use_head": False,
    },
}  # fmt: skip
ONEVISION_PICTURES = {
    "do_convert_rgb": True, "do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True,
    "image_grid_pinpoints": WIDE_GRIDS, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    "image_processor_type": "LlavaOnevisionImageProcessor", "processor_class": "LlavaOnevisionProcessor",
    "resample": 3, "rescale_factor": 0.00392156862745098, "size": {"height": 384, "width": 384},
}  # fmt: skip


def tower(config, **keys):
    return config | {"vision_config": config["vision_config"] | keys}


def read(folder, config, pictures, file="preprocessor_config.json"):
    (folder / "config.json").write_text(json.dumps(config))
    if pictures is not None:
        (folder / file).write_text(json.dumps(pictures))
    return ModelConfig.from_folder(folder)


def test_llava(tmp_path):
    vision = read(tmp_path, LLAVA, LLAVA_PICTURES).vision
    assert vision.rows_of(336, 336) == 576 and vision.tower.num_layers == 23 and vision.image_token_id == 32000
    assert vision.connector == MLPConnector("gelu", True) and vision.picture.fit == "crop"


def test_smolvlm(tmp_path):
    vision = read(tmp_path, SMOL, SMOL_PICTURES).vision
    assert vision.rows_of(384, 384) == 81 and vision.connector == ShuffleConnector(3) and vision.frame == "places"
    assert vision.tower.hidden_act == "gelu_pytorch_tanh" and vision.tower.num_layers == 27
    assert (vision.picture.fit, vision.picture.edge, vision.picture.resize_edge) == ("split", 384, 1536)


def test_internvl(tmp_path, caplog):
    vision = read(tmp_path, INTERN, INTERN_PICTURES).vision
    assert vision.rows_of(448, 448) == 256 and vision.connector == MLPConnector("gelu", True, True, 2)
    assert vision.tower.has_scales and vision.tower.has_attention_bias and vision.tower.post_norm is None
    assert vision.tower.num_layers == 24 and vision.tower.positions == "each" and vision.frame == "ends"
    # Its processor cuts, though the file of its image processor says that it does not.
    assert (vision.picture.fit, vision.picture.edge, vision.picture.max_tiles) == ("grid", 448, 12)
    numbers = {"image_size": 448, "patch_size": 14}
    assert read(tmp_path, tower(INTERN, **numbers), INTERN_PICTURES).vision == vision
    normed = read(tmp_path, tower(INTERN, use_mean_pooling=False), INTERN_PICTURES).vision
    assert normed.tower.post_norm == "layer_norm"
    assert "ignored" not in caplog.text


def test_qwen(tmp_path, caplog):
    vision = read(tmp_path, QWEN, QWEN_PICTURES).vision
    eyes, picture = vision.tower, vision.picture
    assert vision.rows_of(28 * 3, 28 * 5) == 15 and vision.columns_of(28 * 5) == 5 and vision.frame == "none"
    assert vision.axes == (0, 0, 1, 1, 1, 2, 2, 2)
    assert (eyes.window, eyes.full_layers, eyes.norm, eyes.is_gated) == (8, (7, 15, 23, 31), "rms_norm", True)
    assert (picture.fit, picture.edge, picture.min_pixels, picture.max_pixels) == ("area", 28, 3136, 12845056)
    assert picture.largest(1 << 30) == (3584, 3584) and picture.largest(784 * 10) == (84, 84)
    first = read(tmp_path, QWEN2, QWEN_PICTURES).vision
    assert (first.tower.hidden_size, first.tower.intermediate_size, first.tower.window) == (1280, 5120, 0)
    assert first.tower.norm == "layer_norm" and not first.tower.is_gated
    assert (first.picture, first.axes, first.connector) == (vision.picture, vision.axes, vision.connector)
    assert "ignored" not in caplog.text
    # As transformers writes them now: the text apart, other words for the same.
    text = {key: QWEN[key] for key in TEXT.keys() | {"num_key_value_heads", "rope_theta", "rms_norm_eps"}}
    parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    text |= {"model_type": "qwen2_5_vl_text", "rope_parameters": parameters}
    axial = {"rope_type": "axial", "rope_theta": 10000.0}
    newer = tower(QWEN, model_type="qwen2_5_vl_vision", rope_parameters=axial) | {"text_config": text}
    size = {"size": {"shortest_edge": 3136, "longest_edge": 12845056}}
    for pictures in (QWEN_PICTURES | BOUNDS | size, QWEN_PICTURES | {"size": {"min_pixels": 1, "max_pixels": 2}}):
        assert read(tmp_path, newer, pictures).vision == vision
    assert read(tmp_path, QWEN, QWEN_PICTURES | BOUNDS).vision.picture.max_pixels == 28 * 28 * 1280


def test_qwen3(tmp_path, caplog):
    vision = read(tmp_path, QWEN3, QWEN3_PICTURES).vision
    assert (vision.tower.positions, vision.tower.num_sides, vision.tower.image_size) == ("linear", 48, 768)
    assert vision.tower.deep_layers == (5, 11, 17) and vision.tower.has_patch_bias and vision.picture.edge == 32
    assert vision.axes == (0, 1, 2, 0, 1, 2, 0, 0)
    assert "ignored" not in caplog.text


def test_qwen3_5(tmp_path, caplog):
    vision = read(tmp_path, QWEN3_5, QWEN3_PICTURES).vision
    assert (vision.tower.positions, vision.tower.image_size, vision.tower.deep_layers) == ("linear", 768, ())
    assert vision.axes == (0, 1, 2, 0) and vision.image_token_id == 31990 and vision.picture.edge == 32
    assert "ignored" not in caplog.text


def test_glm(tmp_path, caplog):
    vision = read(tmp_path, GLM, GLM_PICTURES).vision
    eyes, picture = vision.tower, vision.picture
    assert (eyes.positions, eyes.num_sides, eyes.intermediate_size, eyes.num_frames) == ("cubic", 24, 64, 2)
    assert (eyes.norm, eyes.post_norm, eyes.has_patch_norm, eyes.has_bias) == ("rms_norm", "rms_norm", True, False)
    assert vision.connector == GatedConnector(2, 13696) and vision.axes == (0, 1, 2, 2) and vision.frame == "none"
    assert (picture.fit, picture.edge, picture.min_pixels, picture.max_pixels) == ("volume", 28, 12544, 9633792)
    assert picture.num_frames == 2 and picture.largest(1 << 30) == (2184, 2184) and picture.largest(7840) == (84, 84)
    newer = GLM_PICTURES | {"image_processor_type": "Glm46VImageProcessorFast"}
    for config in (GLM_EXPERTS, GLM | {"architectures": ["Glm46VForConditionalGeneration"]}):
        same = read(tmp_path, config, newer).vision
        assert (same.tower, same.connector, same.picture, same.axes) == (eyes, vision.connector, picture, vision.axes)
    axial = {"rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0}, "model_type": "glm4v_moe_vision"}
    assert read(tmp_path, tower(GLM_EXPERTS, **axial), GLM_PICTURES).vision.tower == eyes
    assert read(tmp_path, GLM, newer | {"size": None}).vision.picture.max_pixels == 28 * 28 * 15000
    assert "ignored" not in caplog.text


def test_paddle_ocr(tmp_path):
    config = read(tmp_path, PADDLE, PADDLE_PICTURES)
    vision, eyes = config.vision, config.vision.tower
    assert (config.architecture, config.num_hidden_layers, config.head_dim) == ("LlamaForCausalLM", 18, 128)
    assert (eyes.positions, eyes.num_sides, eyes.post_norm, eyes.num_frames) == ("middle", 27, "layer_norm", 0)
    assert vision.connector.norms_patches and vision.connector.scale_factor == 2 and len(vision.axes) == 64
    picture = vision.picture
    assert (picture.fit, picture.widens, picture.edge, picture.max_pixels) == ("area", True, 28, 2822400)
    assert vision.video is None and "not with PaddleOCRVL" in vision.no_video
    with pytest.raises(FamilyLimitError, match="use_bias True"):
        read(tmp_path, PADDLE | {"use_bias": True}, PADDLE_PICTURES)


GLM_VIDEOS = {
    "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "do_sample_frames": True,
    "fps": 2, "max_duration": 300, "max_image_size": {"longest_edge": 47040000}, "merge_size": 2, "num_frames": 16,
    "patch_size": 14, "processor_class": "Glm4vProcessor", "size": {"longest_edge": 47040000, "shortest_edge": 12544},
    "temporal_patch_size": 2, "video_processor_type": "Glm4vVideoProcessor",
}  # fmt: skip


def test_videos_of_glm(tmp_path, caplog):
    def video_of(config, **keys):
        (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(GLM_VIDEOS | keys))
        return read(tmp_path, config, GLM_PICTURES).vision

    found = video_of(GLM).video
    assert (found.token_id, found.row_id, found.form.kind, found.words.text) == (31995, 31990, "Glm4v", "{}")
    assert (found.form.fps, found.form.num_frames, found.form.max_duration, found.form.samples) == (
        2.0,
        None,
        300,
        None,
    )
    assert (found.form.frame.max_pixels, found.form.most_pixels) == (47040000, 23520000)
    assert video_of(GLM_EXPERTS).video == found
    newer = video_of(GLM_EXPERTS, video_processor_type="Glm46VVideoProcessor").video
    assert (newer.form.kind, newer.words.text, newer.form.frame) == ("Glm46V", "{:.1f} seconds", found.form.frame)
    assert video_of(GLM, video_processor_type=None, processor_class="Glm46VProcessor").video.form.kind == "Glm46V"
    assert video_of(GLM | {"video_token_id": 31990}).no_video == "pictures and videos have the same token"
    assert "image token 40000" in video_of(GLM | {"video_token_id": 40000}).no_video
    refused = {
        "video_processor_type": ("Qwen2VLVideoProcessor", "is Qwen2VL's, not GLM-4.1V's"),
        "patch_size": (16, "patch_size 16 of its video processor is not its tower's 14"),
        "max_duration": (0, "max_duration 0"), "fps": (0, "fps 0"), "size": (9, "size.shortest_edge None"),
        "do_rescale": (False, "do_rescale False of its video processor"), "do_sample_frames": (3, "do_sample_frames 3"),
    }  # fmt: skip
    for name, (value, reason) in refused.items():
        vision = video_of(GLM, **{name: value})
        assert vision.video is None and reason in vision.no_video, vision.no_video
    assert "ignored" not in caplog.text


def test_gemma3(tmp_path, caplog):
    vision = read(tmp_path, GEMMA3, GEMMA3_PICTURES).vision
    assert vision.rows_of(896, 896) == 256 and vision.connector == PoolConnector(4, 1e-6) and vision.is_mutual
    assert (vision.image_token_id, vision.placeholder_id, vision.end_token_id) == (31990, 31991, 31992)
    assert (vision.picture.fit, vision.picture.edge, vision.picture.splits) == ("scan", 896, False)
    assert (vision.picture.min_crop, vision.picture.max_tiles, vision.picture.min_ratio) == (256, 4, 1.2)
    # Its processor asks for no crops, whatever the file says.
    assert read(tmp_path, GEMMA3, GEMMA3_PICTURES | {"do_pan_and_scan": True}).vision == vision
    assert "ignored" not in caplog.text


def test_gemma4(tmp_path, caplog):
    vision = read(tmp_path, GEMMA4, GEMMA4_PICTURES, "processor_config.json").vision
    assert vision.connector == MeanConnector(3, 768**0.5, 1e-6, False) and vision.tower.is_clipped
    assert (vision.image_token_id, vision.begin_token_id, vision.end_token_id) == (31990, 31991, 31992)
    assert (vision.picture.fit, vision.picture.edge, vision.picture.max_pixels) == ("budget", 48, 280 * 48**2)
    assert vision.tower.rope_theta == 100.0 and vision.rows_of(96, 144) == 6 and not vision.is_mutual
    assert vision.picture.largest(1 << 30) == (48 * 16, 48 * 16)
    text = GEMMA4["text_config"] | {"use_bidirectional_attention": "vision"}
    seeing = read(tmp_path, GEMMA4 | {"text_config": text}, GEMMA4_PICTURES, "processor_config.json").vision
    assert seeing.is_mutual and seeing.in_windows
    assert "ignored" not in caplog.text


def test_pixtral(tmp_path, caplog):
    vision = read(tmp_path, PIXTRAL, PIXTRAL_PICTURES).vision
    assert vision.connector == MLPConnector("gelu", True) and vision.frame == "lines" and vision.image_token_id == 10
    assert (vision.picture.fit, vision.picture.edge, vision.picture.resize_edge) == ("within", 16, 1024)
    assert vision.rows_of(16 * 3, 16 * 5) == 15 and vision.tokens_of(16 * 3, 16 * 5) == 18 and vision.line_of(80) == 6
    eyes = vision.tower
    assert (eyes.norm, eyes.is_gated, eyes.alternates, eyes.has_bias, eyes.num_layers) == (
        "rms_norm",
        True,
        True,
        False,
        24,
    )
    assert vision.picture.largest(1 << 30) == (1024, 1024) and vision.picture.largest(256 * 9) == (48, 48)
    merged = read(tmp_path, MISTRAL3, MISTRAL3_PICTURES).vision
    assert merged.connector == MergeConnector("gelu", False, 2, 1e-5) and merged.picture.edge == 28
    without = tmp_path / "without"
    without.mkdir()
    assert read(without, MISTRAL3, None).vision == merged
    assert merged.tokens_of(28 * 3, 28 * 5) == 18 and merged.picture.largest(1 << 30) == (1540, 1540)
    for parameters in ({"rope_type": "axial", "rope_theta": 10000.0}, {"rope_type": "default", "rope_theta": 10000.0}):
        assert read(tmp_path, tower(MISTRAL3, rope_parameters=parameters), MISTRAL3_PICTURES).vision == merged
    assert "ignored" not in caplog.text


def test_llava_next(tmp_path, caplog):
    vision = read(tmp_path, NEXT, NEXT_PICTURES).vision
    assert vision.connector == MLPConnector("gelu", True) and vision.tower.num_layers == 23 and vision.has_newline
    assert vision.picture.grids == ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3)) and vision.max_squares == 0
    assert vision.picture.largest(9) == (336 * 5, 336) and vision.picture.largest_grid == SquareGrid(2, 2, 2, 2)
    assert vision.rows_of(336 * 5, 336, SquareGrid(2, 2, 640, 640)) == 576 + 48 * 49
    assert vision.rows_of(336 * 5, 336, SquareGrid(2, 2, 640, 480)) == 576 + 36 * 49
    newer = read(tmp_path, ONEVISION, ONEVISION_PICTURES).vision
    assert newer.rows_of(384 * 37, 384, SquareGrid(6, 6, 600, 600)) == 729 + 81 * 82 and newer.max_squares == 9
    assert newer.tower.post_norm is None and newer.tower.num_layers == 26 and newer.image_token_id == 31990
    unstated = {key: value for key, value in ONEVISION.items() if key != "image_grid_pinpoints"}
    assert read(tmp_path, unstated, ONEVISION_PICTURES | {"image_grid_pinpoints": None}).vision == newer
    assert "ignored" not in caplog.text


def rope(**parameters):
    scaling = QWEN3["text_config"]["rope_scaling"] | parameters
    return QWEN3 | {"text_config": QWEN3["text_config"] | {"rope_scaling": scaling}}


def glm_rope(**parameters):
    return GLM | {"text_config": GLM["text_config"] | {"rope_scaling": {"type": "default", **parameters}}}


def test_a_text_model_without_a_mask_sees_no_pictures(tmp_path):
    config = QWEN3 | {"text_config": QWEN3["text_config"] | {"is_causal": False}}
    with pytest.raises(ModelLoadError, match="has no causal mask"):
        read(tmp_path, config, QWEN3_PICTURES)


def test_older_and_newer_files(tmp_path):
    older = {key: value for key, value in LLAVA.items() if key != "vision_config"}
    fast = LLAVA_PICTURES | {"image_processor_type": "CLIPImageProcessorFast"}
    expected = read(tmp_path, LLAVA, LLAVA_PICTURES).vision
    assert read(tmp_path, older, LLAVA_PICTURES).vision == expected
    assert read(tmp_path, LLAVA, fast | {"size": 336, "crop_size": 336}).vision == expected
    (tmp_path / "preprocessor_config.json").unlink()
    whole = {"image_processor": LLAVA_PICTURES, "processor_class": "LlavaProcessor"}
    assert read(tmp_path, LLAVA, whole, "processor_config.json").vision == expected


@pytest.mark.parametrize(
    ("config", "pictures", "reason"),
    [
        (LLAVA, None, "no preprocessor_config.json"),
        (LLAVA | {"vision_feature_layer": [-2, -5]}, LLAVA_PICTURES, "vision_feature_layer"),
        (LLAVA | {"vision_feature_select_strategy": "cls"}, LLAVA_PICTURES, "vision_feature_select_strategy"),
        (LLAVA | {"image_token_index": 32064}, LLAVA_PICTURES, "image token 32064"),
        (LLAVA | {"vision_config": {"model_type": "dinov2"}}, LLAVA_PICTURES, "dinov2"),
        (LLAVA | {"vision_config": {"model_type": "pixtral"}}, PIXTRAL_PICTURES, "its tower is Pixtral's"),
        (PIXTRAL, LLAVA_PICTURES, "image processor is not Pixtral's"),
        (PIXTRAL, PIXTRAL_PICTURES | {"do_center_crop": True}, "do_center_crop"),
        (PIXTRAL, PIXTRAL_PICTURES | {"size": {"height": 9, "width": 9}}, "not a longest_edge"),
        (
            PIXTRAL | {"text_config": TEXT | {"model_type": "qwen2"}, "image_token_index": 32064},
            PIXTRAL_PICTURES,
            "32064",
        ),
        (tower(PIXTRAL, head_dim=32), PIXTRAL_PICTURES, "head_dim 32 is not 64"),
        (tower(PIXTRAL, rope_parameters={"rope_type": "yarn"}), PIXTRAL_PICTURES, "rope_type 'yarn'"),
        (tower(PIXTRAL, num_attention_heads=512, head_dim=2), PIXTRAL_PICTURES, "heads of 2 elements"),
        (tower(MISTRAL3, model_type="clip_vision_model"), MISTRAL3_PICTURES, "clip_vision_model"),
        (MISTRAL3 | {"vision_feature_layer": [-1, -2]}, MISTRAL3_PICTURES, "is not one layer"),
        (MISTRAL3 | {"spatial_merge_size": 65}, MISTRAL3_PICTURES, "spatial_merge_size"),
        (LLAVA | {"vision_config": LLAVA["vision_config"] | {"num_channels": 4}}, LLAVA_PICTURES, "num_channels"),
        (LLAVA | {"vision_config": LLAVA["vision_config"] | {"hidden_act": "mish"}}, LLAVA_PICTURES, "hidden_act"),
        (LLAVA | {"vision_config": LLAVA["vision_config"] | {"image_size": 224}}, LLAVA_PICTURES, "224 pixels"),
        (LLAVA | {"text_config": TEXT | {"model_type": "cohere2"}}, LLAVA_PICTURES, "Cohere2"),
        (LLAVA, LLAVA_PICTURES | {"do_resize": False}, "do_resize"),
        (LLAVA, LLAVA_PICTURES | {"image_processor_type": "FuyuImageProcessor"}, "FuyuImageProcessor"),
        (LLAVA, PIXTRAL_PICTURES | {"patch_size": 16}, "pictures of any shape"),
        (LLAVA, LLAVA_PICTURES | {"crop_size": {"height": 336, "width": 224}}, "crop_size"),
        (LLAVA, LLAVA_PICTURES | {"size": {"shortest_edge": 224}}, "shortest_edge 224"),
        (LLAVA, {"image_processor_type": "SiglipImageProcessor", "do_center_crop": True}, "crop_size None"),
        (LLAVA, LLAVA_PICTURES | {"image_mean": [0.5]}, "image_mean"),
        (LLAVA, LLAVA_PICTURES | {"image_std": [float("nan"), 1, 10**400]}, "image_std"),
        (LLAVA | {"vision_config": {"image_size": 2048, "patch_size": 1}}, LLAVA_PICTURES, "2048 patches"),
        (LLAVA, LLAVA_PICTURES | {"resample": "cubic"}, "resample"),
        (SMOL | {"scale_factor": 4}, SMOL_PICTURES, "scale_factor 4"),
        (SMOL, SMOL_PICTURES | {"size": {"longest_edge": 384 * 17}}, "16 tiles"),
        (SMOL, LLAVA_PICTURES, "Idefics3's"),
        (INTERN, SMOL_PICTURES, "GOT-OCR 2's"),
        (INTERN, INTERN_PICTURES | {"size": {"height": 448, "width": 336}}, "is not a square"),
        (INTERN, INTERN_PICTURES | {"size": {"height": 336, "width": 336}}, "448 pixels, its image processor has 336"),
        (INTERN, INTERN_PICTURES | {"max_patches": 335}, "max_patches 335"),
        (INTERN, INTERN_PICTURES | {"min_patches": 13}, "min_patches 13"),
        (INTERN, INTERN_PICTURES | {"do_rescale": False}, "do_rescale"),
        (INTERN | {"downsample_ratio": 0.4}, INTERN_PICTURES, "downsample_ratio 0.4"),
        (INTERN | {"downsample_ratio": 2.0}, INTERN_PICTURES, "downsample_ratio 2.0"),
        (INTERN | {"downsample_ratio": 0.2}, INTERN_PICTURES, "32 x 32 patches"),
        (INTERN | {"vision_feature_layer": [-1, -2]}, INTERN_PICTURES, "is not one layer"),
        (INTERN | {"vision_feature_layer": 25}, INTERN_PICTURES, "vision_feature_layer 25"),
        (INTERN | {"vision_feature_select_strategy": "full"}, INTERN_PICTURES, "vision_feature_select_strategy"),
        (INTERN | {"projector_hidden_act": "mish"}, INTERN_PICTURES, "projector_hidden_act"),
        (LLAVA | {"text_config": TEXT | MOE}, LLAVA_PICTURES, "Qwen3Moe"),
        (tower(INTERN, norm_type="batch_norm"), INTERN_PICTURES, "norm_type"),
        (tower(INTERN, image_size=[448, 224]), INTERN_PICTURES, "image_size"),
        (tower(INTERN, model_type="clip_vision_model"), INTERN_PICTURES, "clip_vision_model"),
        (tower(INTERN, use_qk_norm="yes"), INTERN_PICTURES, "use_qk_norm"),
        (
            LLAVA | {"architectures": ["AyaVisionForConditionalGeneration"]},
            LLAVA_PICTURES,
            "LLaVA-NeXT and LLaVA-OneVision so far, not with AyaVision",
        ),
        (NEXT, LLAVA_PICTURES, "not LLaVA-NeXT's"),
        (NEXT | {"vision_feature_select_strategy": "full"}, NEXT_PICTURES, "vision_feature_select_strategy is 'full'"),
        (NEXT | {"image_grid_pinpoints": [[336, 672]]}, NEXT_PICTURES, "not those of config.json"),
        (NEXT, NEXT_PICTURES | {"image_grid_pinpoints": [[336, 673]]}, "no multiples of 336 pixels"),
        (NEXT, NEXT_PICTURES | {"image_grid_pinpoints": [[336, 336 * 17]]}, "not up to 16 tiles"),
        (
            NEXT,
            NEXT_PICTURES
            | {
                "image_grid_pinpoints": [[8192 * 2, 8192]],
                "size": {"shortest_edge": 8192},
                "crop_size": {"height": 8192, "width": 8192},
            },
            "[16384, 8192], above 67108864 pixels",
        ),
        (NEXT, NEXT_PICTURES | {"image_grid_pinpoints": []}, "no list of up to 256 sizes"),
        (NEXT, NEXT_PICTURES | {"crop_size": {"height": 224, "width": 224}}, "crop_size of its image processor is not"),
        (tower(NEXT, image_size=224), NEXT_PICTURES, "224 pixels, its image processor has 336"),
        (ONEVISION | {"vision_feature_select_strategy": "default"}, ONEVISION_PICTURES, "a square has rows beside"),
        (ONEVISION | {"vision_aspect_ratio": "pad"}, ONEVISION_PICTURES, "vision_aspect_ratio is 'pad'"),
        (tower(ONEVISION, model_type="clip_vision_model"), ONEVISION_PICTURES, "clip_vision_model"),
        (GEMMA3, SMOL_PICTURES, "not Gemma 3's"),
        (GEMMA3 | {"mm_tokens_per_image": 200}, GEMMA3_PICTURES, "mm_tokens_per_image 200"),
        (GEMMA3 | {"mm_tokens_per_image": 225}, GEMMA3_PICTURES, "64 x 64 patches"),
        (GEMMA3 | {"eoi_token_index": 32064}, GEMMA3_PICTURES, "image token 32064"),
        (GEMMA3, GEMMA3_PICTURES | {"size": {"height": 448, "width": 448}}, "896 pixels, its image processor has 448"),
        (tower(GEMMA3, model_type="clip_vision_model"), GEMMA3_PICTURES, "clip_vision_model"),
        (GEMMA4, SMOL_PICTURES, "not Gemma 4's"),
        (GEMMA4 | {"vision_config": None}, GEMMA4_IMAGES, "no vision_config"),
        (GEMMA4 | {"boi_token_id": 32064}, GEMMA4_IMAGES, "image token 32064"),
        (GEMMA4, GEMMA4_IMAGES | {"max_soft_tokens": 90}, "max_soft_tokens 90"),
        (GEMMA4, GEMMA4_IMAGES | {"do_normalize": True}, "do_normalize True"),
        (GEMMA4, GEMMA4_IMAGES | {"pooling_kernel_size": 2}, "its image processor of others"),
        (tower(GEMMA4, position_embedding_size=839), GEMMA4_IMAGES, "839 positions on an edge"),
        (tower(GEMMA4, num_key_value_heads=6), GEMMA4_IMAGES, "num_key_value_heads 6"),
        (tower(GEMMA4, head_dim=32), GEMMA4_IMAGES, "head_dim 32 is not 64"),
        (QWEN, SMOL_PICTURES, "not Qwen2-VL's"),
        (QWEN, QWEN_PICTURES | {"merge_size": 3}, "merge_size 3"),
        (QWEN, QWEN_PICTURES | {"temporal_patch_size": 1}, "temporal_patch_size 1"),
        (tower(QWEN, temporal_patch_size=1), QWEN_PICTURES | {"temporal_patch_size": None}, "temporal_patch_size 2"),
        (QWEN, QWEN_PICTURES | {"min_pixels": 99, "max_pixels": 98}, "min_pixels 99"),
        (QWEN, QWEN_PICTURES | {"max_pixels": 1 << 27}, "max_pixels 134217728"),
        (QWEN, QWEN_PICTURES | BOUNDS | {"size": 224}, "size.shortest_edge None"),
        (QWEN, QWEN_PICTURES | {"patch_size": 2.5}, "patch_size 2.5"),
        (tower(QWEN, out_hidden_size=65), QWEN_PICTURES, "65 elements, the text's 64"),
        (tower(QWEN2, hidden_size=32), QWEN_PICTURES, "32 elements, the text's 64"),
        (tower(QWEN, in_chans=4), QWEN_PICTURES, "in_chans 4"),
        (tower(QWEN, num_heads=32 * 20), QWEN_PICTURES, "heads of 2 elements"),
        (tower(QWEN, window_size=27), QWEN_PICTURES, "window_size 27"),
        (tower(QWEN, fullatt_block_indexes=7), QWEN_PICTURES, "fullatt_block_indexes 7"),
        (tower(QWEN, rope_parameters={"rope_type": "linear"}), QWEN_PICTURES, "rope_type 'linear'"),
        (tower(QWEN, rope_parameters={"factor": 2}), QWEN_PICTURES, "rope_parameters hold factor"),
        (tower(QWEN, model_type="qwen3_vl_vision"), QWEN_PICTURES, "qwen3_vl_vision"),
        (QWEN | {"rope_scaling": {"type": "mrope"}}, QWEN_PICTURES, "for 64 pairs, and 8 pairs of a head turn"),
        (QWEN | {"rope_scaling": {"mrope_section": [2, 6.0]}}, QWEN_PICTURES, "mrope_section [2, 6.0]"),
        (
            QWEN | {"rope_scaling": {"mrope_section": [2, 3, 3], "mrope_interleaved": True}},
            QWEN_PICTURES,
            "mrope_interleaved",
        ),
        (QWEN | {"image_token_id": 40000}, QWEN_PICTURES, "image token 40000"),
        (QWEN3, QWEN_PICTURES, "patch_size 14"),
        (QWEN, QWEN_PICTURES | {"merge_size": 74}, "merge_size 74"),
        (tower(LLAVA, image_size=28), QWEN_PICTURES, "pictures of any shape"),
        (tower(QWEN3, num_position_embeddings=2305), QWEN3_PICTURES, "num_position_embeddings 2305"),
        (tower(QWEN3, num_position_embeddings=0), QWEN3_PICTURES, "num_position_embeddings"),
        (tower(QWEN3, deepstack_visual_indexes=[5, 24]), QWEN3_PICTURES, "deepstack_visual_indexes (5, 24)"),
        (tower(QWEN3, deepstack_visual_indexes=[11, 5]), QWEN3_PICTURES, "deepstack_visual_indexes (11, 5)"),
        (rope(mrope_interleaved=False), QWEN3_PICTURES, "mrope_interleaved False"),
        (rope(mrope_section=[4, 4]), QWEN3_PICTURES, "mrope_section [4, 4]"),
        (tower(QWEN3_5, deepstack_visual_indexes=[8]), QWEN3_PICTURES, "deepstack_visual_indexes [8]"),
        (QWEN3_5 | {"architectures": ["Qwen3_5MoeForConditionalGeneration"]}, QWEN3_PICTURES, "tower is 'qwen3_5'"),
        (PADDLE, QWEN_PICTURES, "not PaddleOCR-VL's"),
        (PADDLE, PADDLE_PICTURES | {"temporal_patch_size": 2}, "temporal_patch_size 2"),
        (PADDLE, PADDLE_PICTURES | {"merge_size": 3}, "merge_size 3"),
        (GLM, None, "no preprocessor_config.json"),
        (GLM, QWEN_PICTURES, "not GLM-4.1V's"),
        (QWEN, GLM_PICTURES, "not Qwen2-VL's"),
        (GLM, GLM_PICTURES | {"size": {"longest_edge": 99, "shortest_edge": 100}}, "shortest_edge 100 of its image"),
        (GLM, GLM_PICTURES | {"size": {"height": 28, "width": 28}}, "size.shortest_edge None"),
        (GLM, GLM_PICTURES | {"patch_size": 16}, "patch_size 16"),
        (GLM, GLM_PICTURES | {"temporal_patch_size": 1}, "temporal_patch_size 1"),
        (GLM, GLM_PICTURES | {"do_normalize": False}, "do_normalize False"),
        (GLM | {"image_token_id": 40000}, GLM_PICTURES, "image token 40000"),
        (tower(GLM, out_hidden_size=65), GLM_PICTURES, "65 elements, the text's 64"),
        (tower(GLM, spatial_merge_size=65), GLM_PICTURES, "spatial_merge_size"),
        (tower(GLM, intermediate_size=-1), GLM_PICTURES, "intermediate_size"),
        (tower(GLM, image_size=[336, 224]), GLM_PICTURES, "image_size [336, 224] is not a square"),
        (tower(GLM, image_size=13), GLM_PICTURES, "patch_size 14 is above image_size 13"),
        (tower(GLM, patch_size=[14, 16]), GLM_PICTURES, "patch_size [14, 16] is not a square"),
        (tower(GLM, temporal_patch_size=[2, 2]), GLM_PICTURES, "temporal_patch_size"),
        (tower(GLM, hidden_act="mish"), GLM_PICTURES, "hidden_act is 'mish'"),
        (tower(GLM, rope_parameters={"rope_type": "linear"}), GLM_PICTURES, "rope_type 'linear'"),
        (tower(GLM, num_heads=768), GLM_PICTURES, "heads of 2 elements"),
        (tower(GLM, model_type="qwen3_vl_vision"), GLM_PICTURES, "qwen3_vl_vision"),
        (tower(GLM, in_channels=4), GLM_PICTURES, "in_channels 4"),
        (glm_rope(mrope_section=[8, 12, 12]), GLM_PICTURES, "for 32 pairs, and 4 pairs of a head turn"),
        (glm_rope(mrope_section="x"), GLM_PICTURES, "mrope_section 'x'"),
        (glm_rope(mrope_interleaved=True), GLM_PICTURES, "mrope_interleaved True"),
        (rope(mrope_section=None), QWEN3_PICTURES, "for 64 pairs, and 8 pairs of a head turn"),
    ],
)
def test_a_reason_for_the_text_model_alone(tmp_path, caplog, config, pictures, reason):
    caplog.set_level("INFO", "lullm")
    text = config.get("text_config", config)
    if text["model_type"] == "cohere2":
        text = {key: value for key, value in text.items() if key != "rms_norm_eps"}
        config = config | {"text_config": text | {"logit_scale": 1.0, "sliding_window": 8, "layer_norm_eps": 1e-5}}
    found = read(tmp_path, config, pictures)
    assert found.vision is None and reason in found.no_vision
    assert f"only the text model is loaded; what reads pictures is passed over: {found.no_vision}" in caplog.text


def test_models_of_text_need_no_reason(tmp_path):
    found = read(tmp_path, TEXT | {"architectures": ["LlamaForCausalLM"]}, LLAVA_PICTURES)
    assert found.vision is None and found.no_vision == ""


PUBLISHED = {
    "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "downsample_ratio": 0.5, "ps_version": "v2",
    "llm_config": {
        "model_type": "qwen2", "vocab_size": 400, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    },
    "vision_config": {
        "model_type": "intern_vit_6b", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14, "qkv_bias": True, "qk_normalization": False,
        "norm_type": "layer_norm",
    },
    "force_image_size": 28, "dynamic_image_size": True, "use_thumbnail": True, "select_layer": -1,
    "min_dynamic_patch": 1, "max_dynamic_patch": 6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, ""),
        ({"ps_version": "v1"}, "ps_version is 'v1', and only 'v2'"),
        ({"dynamic_image_size": False}, "dynamic_image_size is False"),
        ({"use_thumbnail": False}, "use_thumbnail is False"),
        ({"force_image_size": 56}, "reads 28 pixels, its image processor has 56"),
        ({"select_layer": 5}, "vision_feature_layer 5"),
        ({"word": "<image>"}, "no token <IMG_CONTEXT>"),
    ],
)
def test_internvl_as_it_is_published(tmp_path, keys, words):
    """The id of a picture's token stands in one of two files of the tokenizer."""
    word = keys.get("word", "<IMG_CONTEXT>")
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | keys))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"feature_extractor_type": "CLIPFeatureExtractor"}))
    for name, content in (
        ("added_tokens.json", {word: 7}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"7": {"content": word}}}),
    ):
        (tmp_path / name).write_text(json.dumps(content))
        config = ModelConfig.from_folder(tmp_path)
        assert config.architecture == "Qwen2ForCausalLM" and words in config.no_vision
        assert (config.vision is None) == bool(words)
        if config.vision is not None:
            assert config.vision.image_token_id == 7 and config.vision.picture.max_tiles == 6
        (tmp_path / name).unlink()


def test_internvl_without_its_text_model(tmp_path):
    data = {key: value for key, value in PUBLISHED.items() if key != "llm_config"}
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(ModelLoadError, match="without an llm_config"):
        ModelConfig.from_folder(tmp_path)
