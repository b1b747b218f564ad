"""The families by the architectures of a `config.json`."""

from collections.abc import Mapping

from lullm.config.family.dense import LLAMA, MISTRAL, QWEN2, QWEN3
from lullm.config.family.experts import GLM4_MOE, MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from lullm.config.family.family import Family
from lullm.config.family.gemma import GEMMA2, GEMMA3
from lullm.config.family.gpt import GPT2, OPT
from lullm.config.family.llama_like import GRANITE, OLMO2, OLMO3, PHI3, SMOLLM3
from lullm.errors import ModelLoadError

FAMILIES: Mapping[str, Family] = {
    "GPT2LMHeadModel": GPT2,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Glm4MoeForCausalLM": GLM4_MOE,
    "GraniteForCausalLM": GRANITE,
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "MixtralForCausalLM": MIXTRAL,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO3,
    "OPTForCausalLM": OPT,
    "OlmoeForCausalLM": OLMOE,
    "Phi3ForCausalLM": PHI3,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen2MoeForCausalLM": QWEN2_MOE,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "SmolLM3ForCausalLM": SMOLLM3,
}


def family_of(architecture: str) -> Family:
    """Raises ModelLoadError: no family has this architecture."""
    family = FAMILIES.get(architecture)
    if family is None:
        raise ModelLoadError(
            f"the architecture {architecture!r} is not supported; known are: {', '.join(sorted(FAMILIES))}"
        )
    return family
