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

_ROWS: dict[str, tuple[Family, str]] = {
    "AfmoeForCausalLM": (AFMOE, "experts.routed:build_afmoe"),
    "ApertusForCausalLM": (APERTUS, "ungated:build_apertus"),
    "ArceeForCausalLM": (ARCEE, "llama:build_arcee"),
    "AXK1ForCausalLM": (AXK1, "experts.deepseek:build_axk1"),
    "BambaForCausalLM": (BAMBA, "hybrid.state_space:build_bamba"),
    "BioGptForCausalLM": (BIOGPT, "gpt:build_biogpt"),
    "BloomForCausalLM": (BLOOM, "layer_norm.bloom:build_bloom"),
    "CodeGenForCausalLM": (CODEGEN, "layer_norm.gpt_neox:build_codegen"),
    "Cohere2ForCausalLM": (COHERE2, "layer_norm.cohere:build_cohere"),
    "Cohere2MoeForCausalLM": (COHERE2_MOE, "layer_norm.cohere:build_cohere2_moe"),
    "CohereForCausalLM": (COHERE, "layer_norm.cohere:build_cohere"),
    "CwmForCausalLM": (CWM, "llama:build_llama"),
    "DeepseekV2ForCausalLM": (DEEPSEEK_V2, "experts.deepseek:build_deepseek"),
    "DeepseekV3ForCausalLM": (DEEPSEEK_V3, "experts.deepseek:build_deepseek"),
    "Dots1ForCausalLM": (DOTS1, "llama:build_llama"),
    "Ernie4_5_MoeForCausalLM": (ERNIE4_5_MOE, "experts.routed:build_ernie4_5_moe"),
    "Ernie4_5ForCausalLM": (ERNIE4_5, "glm:build_helium"),
    "Exaone4ForCausalLM": (EXAONE4, "olmo:build_exaone4"),
    "ExaoneMoeForCausalLM": (EXAONE_MOE, "llama:build_llama"),
    "FalconForCausalLM": (FALCON, "layer_norm.falcon:build_falcon"),
    "FalconH1ForCausalLM": (FALCON_H1, "hybrid.state_space:build_falcon_h1"),
    "FalconMambaForCausalLM": (FALCON_MAMBA, "hybrid.state_space:build_mamba"),
    "FlexOlmoForCausalLM": (FLEX_OLMO, "olmo:build_olmo"),
    "Gemma2ForCausalLM": (GEMMA2, "gemma.gemma3:build_gemma2"),
    "Gemma3ForCausalLM": (GEMMA3, "gemma.gemma3:build_gemma3"),
    "Gemma3nForCausalLM": (GEMMA3N, "gemma.gemma3n:build_gemma3n"),
    "Gemma4ForCausalLM": (GEMMA4, "gemma.gemma4:build_gemma4"),
    "Gemma4UnifiedForCausalLM": (GEMMA4_UNIFIED, "gemma.gemma4:build_gemma4"),
    "GemmaForCausalLM": (GEMMA, "gemma.gemma3:build_gemma"),
    "Glm4ForCausalLM": (GLM4, "glm:build_glm4"),
    "Glm4MoeForCausalLM": (GLM4_MOE, "llama:build_llama"),
    "Glm4MoeLiteForCausalLM": (GLM4_MOE_LITE, "experts.deepseek:build_deepseek"),
    "GlmForCausalLM": (GLM4, "glm:build_glm"),
    "GPT2LMHeadModel": (GPT2, "gpt:build_gpt2"),
    "GPTBigCodeForCausalLM": (GPT_BIGCODE, "gpt:build_gpt_bigcode"),
    "GPTJForCausalLM": (GPTJ, "layer_norm.gpt_neox:build_gptj"),
    "GPTNeoForCausalLM": (GPT_NEO, "gpt:build_gpt_neo"),
    "GPTNeoXForCausalLM": (GPT_NEOX, "layer_norm.gpt_neox:build_gpt_neox"),
    "GptOssForCausalLM": (GPT_OSS, "experts.gpt_oss:build_gpt_oss"),
    "GraniteForCausalLM": (GRANITE, "llama:build_llama"),
    "GraniteMoeForCausalLM": (GRANITE_MOE, "hybrid.state_space:build_granite_hybrid"),
    "GraniteMoeHybridForCausalLM": (GRANITE_HYBRID, "hybrid.state_space:build_granite_hybrid"),
    "GraniteMoeSharedForCausalLM": (GRANITE_MOE, "hybrid.state_space:build_granite_hybrid"),
    "GraniteMoeSWAForCausalLM": (GRANITE_MOE_SWA, "hybrid.state_space:build_granite_hybrid"),
    "GraniteSWAForCausalLM": (GRANITE_SWA, "llama:build_llama"),
    "HeliumForCausalLM": (HELIUM, "glm:build_helium"),
    "HunYuanDenseV1ForCausalLM": (HUNYUAN, "hunyuan:build_hunyuan"),
    "HunYuanMoEV1ForCausalLM": (HUNYUAN_MOE, "hunyuan:build_hunyuan"),
    "HyperCLOVAXForCausalLM": (HYPERCLOVAX, "granite:build_hyperclovax"),
    "HYV3ForCausalLM": (HY_V3, "llama:build_llama"),
    "InternLM3ForCausalLM": (INTERNLM3, "llama:build_llama"),
    "IQuestCoderForCausalLM": (IQUEST_CODER, "llama:build_llama"),
    "Jais2ForCausalLM": (JAIS2, "layer_norm.starcoder:build_jais2"),
    "JambaForCausalLM": (JAMBA, "hybrid.state_space:build_jamba"),
    "KimiLinearForCausalLM": (KIMI_LINEAR, "hybrid.kimi_linear:build_kimi_linear"),
    "LagunaForCausalLM": (LAGUNA, "experts.laguna:build_laguna"),
    "Lfm2ForCausalLM": (LFM2, "hybrid.lfm2:build_lfm2"),
    "Lfm2MoeForCausalLM": (LFM2_MOE, "hybrid.lfm2:build_lfm2"),
    "Lfm3ForCausalLM": (LFM3, "hybrid.lfm2:build_lfm3"),
    "Llama4ForCausalLM": (LLAMA4, "experts.llama4:build_llama4"),
    "LlamaForCausalLM": (LLAMA, "llama:build_llama"),
    "Mamba2ForCausalLM": (MAMBA2, "hybrid.state_space:build_mamba"),
    "MambaForCausalLM": (MAMBA, "hybrid.state_space:build_mamba"),
    "MellumForCausalLM": (MELLUM, "experts.routed:build_qwen3_moe"),
    "MiniCPM3ForCausalLM": (MINICPM3, "experts.deepseek:build_deepseek"),
    "MiniMaxForCausalLM": (MINIMAX, "hybrid.minimax:build_minimax"),
    "MiniMaxM2ForCausalLM": (MINIMAX_M2, "llama:build_llama"),
    "Ministral3ForCausalLM": (MINISTRAL3, "llama:build_llama"),
    "MinistralForCausalLM": (MINISTRAL, "llama:build_llama"),
    "Mistral4ForCausalLM": (MISTRAL4, "experts.deepseek:build_mistral4"),
    "MistralForCausalLM": (MISTRAL, "llama:build_llama"),
    "MixtralForCausalLM": (MIXTRAL, "llama:build_llama"),
    "ModernBertDecoderForCausalLM": (MODERNBERT_DECODER, "layer_norm.modernbert:build_modernbert"),
    "MptForCausalLM": (MPT, "layer_norm.bloom:build_mpt"),
    "NanoChatForCausalLM": (NANOCHAT, "ungated:build_nanochat"),
    "NemotronForCausalLM": (NEMOTRON, "layer_norm.starcoder:build_nemotron"),
    "NemotronHForCausalLM": (NEMOTRON_H, "hybrid.state_space:build_nemotron_h"),
    "Olmo2ForCausalLM": (OLMO2, "olmo:build_olmo"),
    "Olmo3ForCausalLM": (OLMO3, "olmo:build_olmo"),
    "OlmoeForCausalLM": (OLMOE, "llama:build_llama"),
    "OlmoForCausalLM": (OLMO, "layer_norm.starcoder:build_olmo1"),
    "OlmoHybridForCausalLM": (OLMO_HYBRID, "hybrid.olmo_hybrid:build_olmo_hybrid"),
    "OpenAIGPTLMHeadModel": (GPT1, "gpt:build_gpt1"),
    "OPTForCausalLM": (OPT, "gpt:build_opt"),
    "Phi3ForCausalLM": (PHI3, "phi:build_phi3"),
    "PhiForCausalLM": (PHI, "layer_norm.gpt_neox:build_phi"),
    "PhimoeForCausalLM": (PHIMOE, "experts.routed:build_phimoe"),
    "Qwen2ForCausalLM": (QWEN2, "llama:build_llama"),
    "Qwen2MoeForCausalLM": (QWEN2_MOE, "llama:build_llama"),
    "Qwen3_5ForCausalLM": (QWEN3_5, "hybrid.qwen_next:build_qwen3_5"),
    "Qwen3_5MoeForCausalLM": (QWEN3_5_MOE, "hybrid.qwen_next:build_qwen3_5"),
    "Qwen3ForCausalLM": (QWEN3, "llama:build_llama"),
    "Qwen3MoeForCausalLM": (QWEN3_MOE, "experts.routed:build_qwen3_moe"),
    "Qwen3NextForCausalLM": (QWEN3_NEXT, "hybrid.qwen_next:build_qwen3_next"),
    "RecurrentGemmaForCausalLM": (RECURRENT_GEMMA, "hybrid.recurrent_gemma:build_recurrent_gemma"),
    "SeedOssForCausalLM": (SEED_OSS, "llama:build_llama"),
    "SmolLM3ForCausalLM": (SMOLLM3, "llama:build_llama"),
    "SolarOpenForCausalLM": (SOLAR_OPEN, "llama:build_llama"),
    "StableLmForCausalLM": (STABLELM, "layer_norm.starcoder:build_stablelm"),
    "Starcoder2ForCausalLM": (STARCODER2, "layer_norm.starcoder:build_starcoder2"),
    "VaultGemmaForCausalLM": (VAULT_GEMMA, "gemma.gemma3:build_vault_gemma"),
    "YoutuForCausalLM": (YOUTU, "experts.deepseek:build_deepseek"),
    "Zamba2ForCausalLM": (ZAMBA2, "hybrid.zamba2:build_zamba2"),
}
"""By architecture: how its `config.json` is read, and the function of `models.family` that builds it, by its name: here
nothing loads torch, and a process needs the modules of one family."""
FAMILIES = {name: family for name, (family, _) in _ROWS.items()}
BUILDERS = {name: builder for name, (_, builder) in _ROWS.items()}
"""The names of builders, as `module:function` of `models.family`."""


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
