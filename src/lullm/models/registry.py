"""The registry: which family file builds which architecture of a `config.json`."""

import torch

from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.models.gemma import build_gemma2, build_gemma3
from lullm.models.llama import build_llama
from lullm.models.mistral import build_mistral
from lullm.models.protocol import Model
from lullm.models.qwen3 import build_qwen3

BUILDERS = {
    "Gemma2ForCausalLM": build_gemma2,
    "Gemma3ForCausalLM": build_gemma3,
    "LlamaForCausalLM": build_llama,
    "MistralForCausalLM": build_mistral,
    "Qwen3ForCausalLM": build_qwen3,
}


def build_model(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> Model:
    """The model of a config, its parameters of `dtype` on the meta device (see `weights.materialize`).

    `max_model_len` is the number of positions, in tokens, that the rotary table covers.

    Raises:
        ModelLoadError: no family builds this architecture.
    """
    builder = BUILDERS.get(config.architecture)
    if builder is None:
        raise ModelLoadError(
            f"the architecture {config.architecture!r} is not supported; known are: {', '.join(sorted(BUILDERS))}"
        )
    return builder(config, dtype, max_model_len)
