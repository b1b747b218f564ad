"""Checkpoints that read pictures or sounds, too: whose `text_config` is a `config.json` of which architecture."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lullm.config.field import Data, optional_object, positive_int
from lullm.errors import ModelLoadError
from lullm.log import get_logger

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TextModel:
    """The text model of an architecture.

    Args:
        architecture: of the text model; None: chosen by the `model_type` of the `text_config` (`_BY_MODEL_TYPE`).
        defaults: values of missing keys that differ from that architecture's.
        has_plane_rope: positions of pictures are planes, and pairs rotate by their axes in turn (`mrope_section`). In a
            text all axes are equal, so it is the plain rope (https://arxiv.org/abs/2409.12191).
        has_equal_heads: a head without a `head_dim` has its share of a row, not that architecture's default.
    """

    architecture: str | None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    has_plane_rope: bool = False
    has_equal_heads: bool = False


_QWEN2_VL = {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "max_window_layers": 80}
_QWEN3_VL = {"rope_theta": 5e5, "head_dim": 128, "num_key_value_heads": 32}
_QWEN3_VL_MOE = {
    "rope_theta": 5e5, "num_key_value_heads": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408, "norm_topk_prob": True,
}  # fmt: skip

_GLM4V = {"rms_norm_eps": 1e-5, "num_key_value_heads": 2, "attention_bias": True, "partial_rotary_factor": 1.0}
_GLM_OCR = _GLM4V | {"num_key_value_heads": 8, "attention_bias": False}
_GLM4V_MOE = {"num_key_value_heads": 8, "attention_bias": True}

_PADDLE = {
    "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": True,
}  # fmt: skip
"""The text model is ERNIE 4.5's, but pairs of a head are halves apart."""
_QWEN2_AUDIO = {
    "model_type": "qwen2", "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32768, "vocab_size": 151936,
}  # fmt: skip
_VOXTRAL = {
    "model_type": "llama", "vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 8192,
    "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e8,
}  # fmt: skip

_OMNI_TEXT = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768, "rope_theta": 1e6,
}  # fmt: skip

_PHI4 = {
    "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "bos_token_id": 199999,
    "eos_token_id": [199999, 200020],
}  # fmt: skip
PHI4 = "Phi4MultimodalForCausalLM"

OMNI_THINKER = "Qwen2_5OmniThinkerForConditionalGeneration"
_OMNI = ("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration")
"""The same with parts that speak."""
_TALKER = "talker_config"

TEXT_MODELS: dict[str, TextModel] = {
    "AyaVisionForConditionalGeneration": TextModel(None),
    "Cohere2VisionForConditionalGeneration": TextModel(None),
    "Exaone4_5_ForConditionalGeneration": TextModel("Exaone4ForCausalLM"),
    "Gemma3ForConditionalGeneration": TextModel("Gemma3ForCausalLM"),
    "Gemma3nForConditionalGeneration": TextModel("Gemma3nForCausalLM"),
    "Gemma4ForConditionalGeneration": TextModel("Gemma4ForCausalLM"),
    "Gemma4UnifiedForConditionalGeneration": TextModel("Gemma4UnifiedForCausalLM"),
    "Glm4vForConditionalGeneration": TextModel("Glm4ForCausalLM", _GLM4V, True, has_equal_heads=True),
    "Glm46VForConditionalGeneration": TextModel("Glm4ForCausalLM", _GLM4V, True, has_equal_heads=True),
    "Glm4vMoeForConditionalGeneration": TextModel("Glm4MoeForCausalLM", _GLM4V_MOE, has_plane_rope=True),
    "GlmOcrForConditionalGeneration": TextModel("Glm4ForCausalLM", _GLM_OCR, True, has_equal_heads=True),
    "Idefics3ForConditionalGeneration": TextModel(None),
    "InternVLForConditionalGeneration": TextModel(None),
    "Lfm2VlForConditionalGeneration": TextModel(None),
    "LightOnOcrForConditionalGeneration": TextModel(None, {"model_type": "qwen3", "tie_word_embeddings": True}),
    "Llama4ForConditionalGeneration": TextModel("Llama4ForCausalLM"),
    "Lfm3VlForConditionalGeneration": TextModel(None),
    "LlavaForConditionalGeneration": TextModel(None),
    "LlavaNextForConditionalGeneration": TextModel(None),
    "LlavaOnevisionForConditionalGeneration": TextModel(None),
    "Mistral3ForConditionalGeneration": TextModel(None),
    "Qwen2AudioForConditionalGeneration": TextModel(None, _QWEN2_AUDIO),
    "PaddleOCRVLForConditionalGeneration": TextModel("LlamaForCausalLM", _PADDLE, has_plane_rope=True),
    PHI4: TextModel("Phi3ForCausalLM", _PHI4),
    OMNI_THINKER: TextModel("Qwen2ForCausalLM", _OMNI_TEXT, has_plane_rope=True),
    "Qwen2VLForConditionalGeneration": TextModel("Qwen2ForCausalLM", _QWEN2_VL, has_plane_rope=True),
    "Qwen2_5_VLForConditionalGeneration": TextModel("Qwen2ForCausalLM", _QWEN2_VL, has_plane_rope=True),
    "Qwen3VLForConditionalGeneration": TextModel("Qwen3ForCausalLM", _QWEN3_VL, has_plane_rope=True),
    "Qwen3VLMoeForConditionalGeneration": TextModel("Qwen3MoeForCausalLM", _QWEN3_VL_MOE, has_plane_rope=True),
    "Qwen3_5ForConditionalGeneration": TextModel("Qwen3_5ForCausalLM"),
    "Qwen3_5MoeForConditionalGeneration": TextModel("Qwen3_5MoeForCausalLM"),
    "SmolVLMForConditionalGeneration": TextModel(None),
    "VoxtralForConditionalGeneration": TextModel(None, _VOXTRAL),
}

_BY_MODEL_TYPE = {
    "cohere2": "Cohere2ForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm3": "Lfm3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""Architectures by the `model_type` of a `text_config`, if there are several."""

_TIES = "tie_word_embeddings"
_OF_THE_WHOLE = ("dtype", "torch_dtype", "eos_token_id", "bos_token_id", "quantization_config", _TIES)
"""Keys that a file may have outside of `text_config`, for the whole model."""
_OF_PICTURES = frozenset(
    {
        "vision_config", "audio_config", "image_token_id", "video_token_id", "vision_token_id", "vision_start_token_id",
        "vision_end_token_id", "image_start_token_id", "image_end_token_id", "video_start_token_id",
        "video_end_token_id",
    }
)  # fmt: skip
"""Keys beside those of the text, in a file without `text_config`, and in some with it."""
_PLANES = ("mrope_section", "mrope_interleaved")


def thinking_part(data: Data) -> Data:
    """The `config.json` of the part of Qwen2.5-Omni that reads and answers, with its parts named as in other models;
    of others, the same.

    Raises ModelLoadError.
    """
    names = data.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if name in _OMNI:
        thinker = optional_object(data, "thinker_config")
        if not thinker:
            raise ModelLoadError(f"config.json: {name} without a thinker_config, the part that reads and answers")
        outer = {key: data[key] for key in (*_OF_THE_WHOLE, _TALKER) if data.get(key) is not None}
        data, name = {**outer, **thinker, "architectures": [OMNI_THINKER]}, OMNI_THINKER
    if name != OMNI_THINKER:
        return data
    words = {key: key.replace("_token_index", "_token_id") for key in data}
    return {words[key]: value for key, value in data.items()}


def text_part(data: Data, architecture: str) -> Data:
    """The `config.json` of the language model alone; the same where there is nothing else. Its own keys come first.

    Older files of Qwen have no `text_config`, and its keys beside `vision_config`.
    """
    model = TEXT_MODELS.get(architecture)
    if model is None:
        return data
    if _TALKER in data:
        logger.info("%s: it answers with text; what speaks is passed over", architecture)
    stated_text = optional_object(data, "text_config") or data
    text = {key: value for key, value in stated_text.items() if key not in _OF_PICTURES}
    outer = {key: data[key] for key in _OF_THE_WHOLE if data.get(key) is not None}
    # Whether the head is tied is said by the whole, as transformers reads it: it ties the head of the whole.
    own = {key: value for key, value in text.items() if key not in outer or value is not None and key != _TIES}
    model_type = text.get("model_type") or model.defaults.get("model_type")
    name = model.architecture or (_BY_MODEL_TYPE.get(model_type) if isinstance(model_type, str) else None)
    stated = outer | own
    stated |= {key: value for key, value in model.defaults.items() if stated.get(key) is None}
    if model.has_equal_heads and stated.get("head_dim") is None:
        stated["head_dim"] = positive_int(stated, "hidden_size") // positive_int(stated, "num_attention_heads")
    if model.has_plane_rope:
        stated |= {key: _plain_rope(stated, key) for key in ("rope_scaling", "rope_parameters") if key in stated}
    # A text model without a name here is refused by the name that it would have.
    return stated | {"architectures": [name or f"{architecture} of {model_type}"]}


def _plain_rope(data: Data, name: str) -> Data:
    """Raises ModelLoadError."""
    parameters = {key: value for key, value in optional_object(data, name).items() if key not in _PLANES}
    return {key: "default" if value == "mrope" else value for key, value in parameters.items()}
