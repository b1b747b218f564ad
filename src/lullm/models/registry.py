"""The registry: which family file builds which architecture of a `config.json`."""

from collections.abc import Callable

import torch

from lullm.config.model import ModelConfig
from lullm.models.gemma import build_gemma2, build_gemma3
from lullm.models.llama import build_llama
from lullm.models.mistral import build_mistral
from lullm.models.protocol import Model
from lullm.models.qwen2 import build_qwen2
from lullm.models.qwen3 import build_qwen3

BUILDERS: dict[str, Callable[[ModelConfig, torch.dtype, int], Model]] = {
    "Gemma2ForCausalLM": build_gemma2,
    "Gemma3ForCausalLM": build_gemma3,
    "LlamaForCausalLM": build_llama,
    "MistralForCausalLM": build_mistral,
    "Qwen2ForCausalLM": build_qwen2,
    "Qwen3ForCausalLM": build_qwen3,
}
"""The same architectures as `config.family.table`."""


def build_model(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> Model:
    """The model of a config, its parameters of `dtype` on the meta device (see `weights.materialize`).

    `max_model_len` is the number of positions, in tokens, that the rotary table covers.

    Raises:
        ModelLoadError: a family cannot be built with these sizes, or there is no memory for its tables.
    """
    return BUILDERS[config.architecture](config, dtype, max_model_len)
