"""The families by the architectures of a `config.json`: lullm's own, and those that other packages bring."""

from importlib.metadata import entry_points

from lullm.config.family.dense import LLAMA, MISTRAL, QWEN2, QWEN3
from lullm.config.family.experts import GLM4_MOE, MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from lullm.config.family.family import Family
from lullm.config.family.gemma import GEMMA2, GEMMA3
from lullm.config.family.gpt import GPT2, OPT
from lullm.config.family.gpt_oss import GPT_OSS
from lullm.config.family.latent import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE
from lullm.config.family.llama_like import GRANITE, OLMO2, OLMO3, PHI3, SMOLLM3
from lullm.errors import ModelLoadError

FAMILIES: dict[str, Family] = {
    "DeepseekV2ForCausalLM": DEEPSEEK_V2,
    "DeepseekV3ForCausalLM": DEEPSEEK_V3,
    "GPT2LMHeadModel": GPT2,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Glm4MoeForCausalLM": GLM4_MOE,
    "Glm4MoeLiteForCausalLM": GLM4_MOE_LITE,
    "GptOssForCausalLM": GPT_OSS,
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


OUTSIDE: dict[str, Family] = {}
"""Families of models outside the tree; see `models.registry.register_model`."""

ENTRY_POINTS = "lullm.models"
"""The group of entry points: a name is an architecture, its object a function that registers it, without arguments."""


def is_known(architecture: str) -> bool:
    """Whether lullm, or an installed package, has this architecture. Raises ModelLoadError as `family_of` does."""
    if architecture in FAMILIES or architecture in OUTSIDE:
        return True
    for point in entry_points(group=ENTRY_POINTS, name=architecture):
        try:
            point.load()()
        except Exception as error:
            raise ModelLoadError(
                f"the entry point {point.name} = {point.value} of {ENTRY_POINTS} failed: {error!r}; repair or "
                "uninstall its package"
            ) from error
        if architecture not in OUTSIDE:
            raise ModelLoadError(
                f"the entry point {point.name} = {point.value} of {ENTRY_POINTS} has not called "
                f"register_model({architecture!r}, ...)"
            )
        return True
    return False


def family_of(architecture: str) -> Family:
    """Raises ModelLoadError: no family has this architecture, or its entry point fails."""
    if not is_known(architecture):
        raise ModelLoadError(
            f"the architecture {architecture!r} is not supported; known are: {', '.join(sorted({*FAMILIES, *OUTSIDE}))}"
        )
    return FAMILIES.get(architecture) or OUTSIDE[architecture]
