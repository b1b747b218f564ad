"""The families by the architectures of a `config.json`: lullm's own, and those that other packages bring."""

from lullm.config.family.dense import LLAMA, MISTRAL, QWEN2, QWEN3
from lullm.config.family.experts.gpt_oss import GPT_OSS
from lullm.config.family.experts.laguna import LAGUNA
from lullm.config.family.experts.llama4 import LLAMA4
from lullm.config.family.experts.phimoe import PHIMOE
from lullm.config.family.experts.sigmoid import AFMOE, DOTS1, GLM4_MOE, HY_V3, MINIMAX_M2, SOLAR_OPEN
from lullm.config.family.experts.softmax import (
    ERNIE4_5_MOE,
    FLEX_OLMO,
    GRANITE_MOE,
    GRANITE_MOE_SWA,
    MELLUM,
    MIXTRAL,
    OLMOE,
    QWEN2_MOE,
    QWEN3_MOE,
)
from lullm.config.family.family import Family
from lullm.config.family.gemma.gemma3 import GEMMA, GEMMA2, GEMMA3, VAULT_GEMMA
from lullm.config.family.gemma.gemma3n import GEMMA3N
from lullm.config.family.gemma.gemma4 import GEMMA4, GEMMA4_UNIFIED
from lullm.config.family.gpt import BIOGPT, GPT1, GPT2, GPT_BIGCODE, GPT_NEO, OPT
from lullm.config.family.granite import GRANITE, GRANITE_SWA, HYPERCLOVAX
from lullm.config.family.hunyuan import HUNYUAN, HUNYUAN_MOE
from lullm.config.family.hybrid.kimi_linear import KIMI_LINEAR
from lullm.config.family.hybrid.lfm2 import LFM2, LFM2_MOE, LFM3
from lullm.config.family.hybrid.mamba import FALCON_MAMBA, JAMBA, MAMBA, MAMBA2
from lullm.config.family.hybrid.minimax import MINIMAX
from lullm.config.family.hybrid.nemotron_h import NEMOTRON_H
from lullm.config.family.hybrid.olmo_hybrid import OLMO_HYBRID
from lullm.config.family.hybrid.qwen_next import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from lullm.config.family.hybrid.recurrent_gemma import RECURRENT_GEMMA
from lullm.config.family.hybrid.state_space import BAMBA, FALCON_H1, GRANITE_HYBRID
from lullm.config.family.hybrid.zamba2 import ZAMBA2
from lullm.config.family.latent import AXK1, DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE, MINICPM3, MISTRAL4, YOUTU
from lullm.config.family.layer_norm.alibi import BLOOM, MPT
from lullm.config.family.layer_norm.cohere import COHERE, COHERE2, COHERE2_MOE
from lullm.config.family.layer_norm.falcon import FALCON
from lullm.config.family.layer_norm.families import (
    CODEGEN,
    GPT_NEOX,
    GPTJ,
    JAIS2,
    NEMOTRON,
    OLMO,
    PHI,
    STABLELM,
    STARCODER2,
)
from lullm.config.family.layer_norm.modernbert import MODERNBERT_DECODER
from lullm.config.family.llama_like import (
    APERTUS,
    ARCEE,
    CWM,
    ERNIE4_5,
    EXAONE4,
    EXAONE_MOE,
    GLM4,
    HELIUM,
    INTERNLM3,
    IQUEST_CODER,
    MINISTRAL,
    MINISTRAL3,
    NANOCHAT,
    OLMO2,
    OLMO3,
    PHI3,
    SEED_OSS,
    SMOLLM3,
)
from lullm.config.family.text_model import TEXT_MODELS
from lullm.errors import ModelLoadError

FAMILIES: dict[str, Family] = {
    "AXK1ForCausalLM": AXK1,
    "ArceeForCausalLM": ARCEE,
    "BambaForCausalLM": BAMBA,
    "BioGptForCausalLM": BIOGPT,
    "BloomForCausalLM": BLOOM,
    "CodeGenForCausalLM": CODEGEN,
    "GPTBigCodeForCausalLM": GPT_BIGCODE,
    "GPTNeoForCausalLM": GPT_NEO,
    "CohereForCausalLM": COHERE,
    "Cohere2ForCausalLM": COHERE2,
    "Cohere2MoeForCausalLM": COHERE2_MOE,
    "DeepseekV2ForCausalLM": DEEPSEEK_V2,
    "DeepseekV3ForCausalLM": DEEPSEEK_V3,
    "Dots1ForCausalLM": DOTS1,
    "Ernie4_5ForCausalLM": ERNIE4_5,
    "Ernie4_5_MoeForCausalLM": ERNIE4_5_MOE,
    "Exaone4ForCausalLM": EXAONE4,
    "ExaoneMoeForCausalLM": EXAONE_MOE,
    "FalconForCausalLM": FALCON,
    "FalconH1ForCausalLM": FALCON_H1,
    "FalconMambaForCausalLM": FALCON_MAMBA,
    "FlexOlmoForCausalLM": FLEX_OLMO,
    "GPT2LMHeadModel": GPT2,
    "GPTJForCausalLM": GPTJ,
    "GPTNeoXForCausalLM": GPT_NEOX,
    "GemmaForCausalLM": GEMMA,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3nForCausalLM": GEMMA3N,
    "Gemma4ForCausalLM": GEMMA4,
    "Gemma4UnifiedForCausalLM": GEMMA4_UNIFIED,
    "GlmForCausalLM": GLM4,
    "Glm4ForCausalLM": GLM4,
    "Glm4MoeForCausalLM": GLM4_MOE,
    "Glm4MoeLiteForCausalLM": GLM4_MOE_LITE,
    "GptOssForCausalLM": GPT_OSS,
    "GraniteForCausalLM": GRANITE,
    "GraniteMoeForCausalLM": GRANITE_MOE,
    "GraniteMoeSharedForCausalLM": GRANITE_MOE,
    "GraniteMoeHybridForCausalLM": GRANITE_HYBRID,
    "HeliumForCausalLM": HELIUM,
    "JambaForCausalLM": JAMBA,
    "LagunaForCausalLM": LAGUNA,
    "Lfm2ForCausalLM": LFM2,
    "Lfm2MoeForCausalLM": LFM2_MOE,
    "Lfm3ForCausalLM": LFM3,
    "LlamaForCausalLM": LLAMA,
    "Llama4ForCausalLM": LLAMA4,
    "MambaForCausalLM": MAMBA,
    "Mamba2ForCausalLM": MAMBA2,
    "MiniMaxForCausalLM": MINIMAX,
    "MiniMaxM2ForCausalLM": MINIMAX_M2,
    "MinistralForCausalLM": MINISTRAL,
    "Ministral3ForCausalLM": MINISTRAL3,
    "MistralForCausalLM": MISTRAL,
    "Mistral4ForCausalLM": MISTRAL4,
    "MixtralForCausalLM": MIXTRAL,
    "ModernBertDecoderForCausalLM": MODERNBERT_DECODER,
    "MptForCausalLM": MPT,
    "NemotronForCausalLM": NEMOTRON,
    "NemotronHForCausalLM": NEMOTRON_H,
    "OlmoForCausalLM": OLMO,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO3,
    "OPTForCausalLM": OPT,
    "OpenAIGPTLMHeadModel": GPT1,
    "OlmoeForCausalLM": OLMOE,
    "PhiForCausalLM": PHI,
    "Phi3ForCausalLM": PHI3,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen2MoeForCausalLM": QWEN2_MOE,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "Qwen3NextForCausalLM": QWEN3_NEXT,
    "Qwen3_5ForCausalLM": QWEN3_5,
    "Qwen3_5MoeForCausalLM": QWEN3_5_MOE,
    "SeedOssForCausalLM": SEED_OSS,
    "SolarOpenForCausalLM": SOLAR_OPEN,
    "StableLmForCausalLM": STABLELM,
    "Starcoder2ForCausalLM": STARCODER2,
    "SmolLM3ForCausalLM": SMOLLM3,
    "AfmoeForCausalLM": AFMOE,
    "HYV3ForCausalLM": HY_V3,
    "MellumForCausalLM": MELLUM,
    "KimiLinearForCausalLM": KIMI_LINEAR,
    "OlmoHybridForCausalLM": OLMO_HYBRID,
    "RecurrentGemmaForCausalLM": RECURRENT_GEMMA,
    "Zamba2ForCausalLM": ZAMBA2,
    "MiniCPM3ForCausalLM": MINICPM3,
    "YoutuForCausalLM": YOUTU,
    "ApertusForCausalLM": APERTUS,
    "CwmForCausalLM": CWM,
    "GraniteSWAForCausalLM": GRANITE_SWA,
    "GraniteMoeSWAForCausalLM": GRANITE_MOE_SWA,
    "HunYuanDenseV1ForCausalLM": HUNYUAN,
    "HunYuanMoEV1ForCausalLM": HUNYUAN_MOE,
    "HyperCLOVAXForCausalLM": HYPERCLOVAX,
    "InternLM3ForCausalLM": INTERNLM3,
    "IQuestCoderForCausalLM": IQUEST_CODER,
    "Jais2ForCausalLM": JAIS2,
    "NanoChatForCausalLM": NANOCHAT,
    "PhimoeForCausalLM": PHIMOE,
    "VaultGemmaForCausalLM": VAULT_GEMMA,
}


OUTSIDE: dict[str, Family] = {}
"""Families of models outside the tree; see `models.registry.register_model`."""

ENTRY_POINTS = "lullm.models"
"""The group of entry points: a name is an architecture, its object a function that registers it, without arguments."""


def is_known(architecture: str) -> bool:
    """Whether lullm, or an installed package, has this architecture. Raises ModelLoadError as `family_of` does."""
    if architecture in FAMILIES or architecture in OUTSIDE or architecture in TEXT_MODELS:
        return True
    from importlib.metadata import entry_points  # it takes 10 ms, and most models are known

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
    if not is_known(architecture) or architecture in TEXT_MODELS:
        known = ", ".join(sorted({*FAMILIES, *OUTSIDE}))
        raise ModelLoadError(
            f"the architecture {architecture!r} is not supported; known are: {known}; "
            "others run by the code of transformers, if it has them: install lullm[transformers], model_impl='auto'"
        )
    return FAMILIES.get(architecture) or OUTSIDE[architecture]
