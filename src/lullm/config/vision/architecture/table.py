"""Every architecture whose pictures are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lullm.config.family.text_model import PHI4
from lullm.config.vision.architecture.gemma import read_gemma3, read_gemma4
from lullm.config.vision.architecture.glm import GLM_V, read_glm_ocr, read_glm_v, read_glm_video
from lullm.config.vision.architecture.llava import ONEVISION, read_llava, read_llava_next
from lullm.config.vision.architecture.paddle import read_paddle_ocr
from lullm.config.vision.architecture.phi4 import read_phi4
from lullm.config.vision.architecture.pixtral import UNSTATED, read_lighton_ocr, read_mistral3
from lullm.config.vision.architecture.qwen_vl import QWEN_VL, read_qwen_video, read_qwen_vl
from lullm.config.vision.architecture.shared import Read, ReadVideo
from lullm.config.vision.architecture.tiles import read_idefics3, read_internvl

_TEXTS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Others may scale rows, or let them see each other both ways."""


@dataclass(frozen=True, slots=True)
class Seeing:
    """How the pictures of an architecture are read.

    Args:
        read: the function. texts: the text models that are known below it.
        unstated: its image processor, in a folder without a file of one; None: there is none.
        read_video: the function for videos; None: they are not read.
    """

    read: Read
    texts: tuple[str, ...] = _TEXTS
    unstated: dict[str, Any] | None = None
    read_video: ReadVideo | None = None


_QWEN_TEXTS = {
    "Qwen3VLMoeForConditionalGeneration": ("Qwen3MoeForCausalLM",),
    "Qwen3_5ForConditionalGeneration": ("Qwen3_5ForCausalLM",),
    "Qwen3_5MoeForConditionalGeneration": ("Qwen3_5MoeForCausalLM",),
}
_GLM_TEXTS = {"Glm4vMoeForConditionalGeneration": ("Glm4MoeForCausalLM",)}
SEEING: Mapping[str, Seeing] = {
    "LlavaForConditionalGeneration": Seeing(read_llava, unstated=UNSTATED),
    "LlavaNextForConditionalGeneration": Seeing(read_llava_next),
    ONEVISION: Seeing(read_llava_next),
    "Idefics3ForConditionalGeneration": Seeing(read_idefics3),
    "SmolVLMForConditionalGeneration": Seeing(read_idefics3),
    "InternVLForConditionalGeneration": Seeing(read_internvl, (*_TEXTS, "InternLM2ForCausalLM", "Qwen3MoeForCausalLM")),
    **{name: Seeing(read_qwen_vl, _QWEN_TEXTS.get(name, _TEXTS), read_video=read_qwen_video) for name in QWEN_VL},
    **{
        name: Seeing(read_glm_v, _GLM_TEXTS.get(name, ("Glm4ForCausalLM",)), read_video=read_glm_video)
        for name in GLM_V
    },
    "GlmOcrForConditionalGeneration": Seeing(read_glm_ocr, ("Glm4ForCausalLM",)),
    "LightOnOcrForConditionalGeneration": Seeing(read_lighton_ocr),
    "PaddleOCRVLForConditionalGeneration": Seeing(read_paddle_ocr),
    "Gemma3ForConditionalGeneration": Seeing(read_gemma3, ("Gemma3ForCausalLM",)),
    "Gemma4ForConditionalGeneration": Seeing(read_gemma4, ("Gemma4ForCausalLM",)),
    PHI4: Seeing(read_phi4, ("Phi3ForCausalLM",)),
    "Mistral3ForConditionalGeneration": Seeing(
        read_mistral3, (*_TEXTS, "Ministral3ForCausalLM", "Mistral4ForCausalLM"), UNSTATED
    ),
}
