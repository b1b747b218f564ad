"""The families by the architectures of a `config.json`: lullm's own, and those that other packages bring."""

from lullm.config.family.dense import LLAMA, MISTRAL, QWEN2, QWEN3
from lullm.config.family.encoder_decoder import BART, WHISPER
from lullm.config.family.encoder_only.bert import (
    ALBERT,
    BERT,
    DISTILBERT,
    ELECTRA,
    GTE,
    GTE_NEW,
    MPNET,
    NOMIC_BERT,
    ROBERTA,
)
from lullm.config.family.encoder_only.bidirectional import or_bidirectional, without_mask
from lullm.config.family.encoder_only.deberta import DEBERTA
from lullm.config.family.encoder_only.modernbert import MODERNBERT
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
from lullm.config.family.renamed.baichuan import BAICHUAN
from lullm.config.family.renamed.bailing import BAILING, BAILING_2
from lullm.config.family.renamed.chatglm import CHATGLM
from lullm.config.family.renamed.decilm import DECILM
from lullm.config.family.renamed.llama_like import EXAONE, INTERNLM, INTERNLM2, MIMO, MINICPM, ORION, XVERSE
from lullm.config.family.renamed.qwen import QWEN
from lullm.config.family.text_model import TEXT_MODELS
from lullm.errors import ModelLoadError

_ROWS: dict[str, tuple[Family, str]] = {
    "AfmoeForCausalLM": (AFMOE, "experts.routed:afmoe_style"),
    "ApertusForCausalLM": (APERTUS, "ungated:apertus_style"),
    "AquilaForCausalLM": (LLAMA, "llama:llama_style"),
    "ArceeForCausalLM": (ARCEE, "llama:arcee_style"),
    "AXK1ForCausalLM": (AXK1, "experts.deepseek:axk1_style"),
    "BaichuanForCausalLM": (BAICHUAN, "renamed.baichuan:baichuan_style"),
    "BailingMoeForCausalLM": (BAILING, "renamed.bailing:bailing_style"),
    "BailingMoeV2ForCausalLM": (BAILING_2, "renamed.bailing:bailing_style"),
    "BambaForCausalLM": (BAMBA, "hybrid.state_space:bamba_style"),
    "BioGptForCausalLM": (BIOGPT, "gpt:biogpt_style"),
    "BloomForCausalLM": (BLOOM, "layer_norm.bloom:bloom_style"),
    "ChatGLMForConditionalGeneration": (CHATGLM, "renamed.chatglm:chatglm_style"),
    "CodeGenForCausalLM": (CODEGEN, "layer_norm.gpt_neox:codegen_style"),
    "Cohere2ForCausalLM": (COHERE2, "layer_norm.cohere:cohere_style"),
    "Cohere2MoeForCausalLM": (COHERE2_MOE, "layer_norm.cohere:cohere2_moe_style"),
    "CohereForCausalLM": (COHERE, "layer_norm.cohere:cohere_style"),
    "CwmForCausalLM": (CWM, "llama:llama_style"),
    "DeciLMForCausalLM": (DECILM, "renamed.decilm:decilm_style"),
    "DeepseekV2ForCausalLM": (DEEPSEEK_V2, "experts.deepseek:deepseek_style"),
    "DeepseekV3ForCausalLM": (DEEPSEEK_V3, "experts.deepseek:deepseek_style"),
    "Dots1ForCausalLM": (DOTS1, "llama:llama_style"),
    "Ernie4_5_MoeForCausalLM": (ERNIE4_5_MOE, "experts.routed:ernie4_5_moe_style"),
    "Ernie4_5ForCausalLM": (ERNIE4_5, "glm:helium_style"),
    "Exaone4ForCausalLM": (EXAONE4, "olmo:exaone4_style"),
    "ExaoneForCausalLM": (EXAONE, "renamed.llama_like:exaone_style"),
    "ExaoneMoeForCausalLM": (EXAONE_MOE, "llama:llama_style"),
    "FalconForCausalLM": (FALCON, "layer_norm.falcon:falcon_style"),
    "FalconH1ForCausalLM": (FALCON_H1, "hybrid.state_space:falcon_h1_style"),
    "FalconMambaForCausalLM": (FALCON_MAMBA, "hybrid.state_space:mamba_style"),
    "FlexOlmoForCausalLM": (FLEX_OLMO, "olmo:olmo_style"),
    "Gemma2ForCausalLM": (GEMMA2, "gemma.gemma3:gemma2_style"),
    "Gemma3ForCausalLM": (GEMMA3, "gemma.gemma3:gemma3_style"),
    "Gemma3nForCausalLM": (GEMMA3N, "gemma.gemma3n:gemma3n_style"),
    "Gemma4ForCausalLM": (GEMMA4, "gemma.gemma4:gemma4_style"),
    "Gemma4UnifiedForCausalLM": (GEMMA4_UNIFIED, "gemma.gemma4:gemma4_style"),
    "GemmaForCausalLM": (GEMMA, "gemma.gemma3:gemma_style"),
    "Glm4ForCausalLM": (GLM4, "glm:glm4_style"),
    "Glm4MoeForCausalLM": (GLM4_MOE, "llama:llama_style"),
    "Glm4MoeLiteForCausalLM": (GLM4_MOE_LITE, "experts.deepseek:deepseek_style"),
    "GlmForCausalLM": (GLM4, "glm:glm_style"),
    "GPT2LMHeadModel": (GPT2, "gpt:gpt2_style"),
    "GPTBigCodeForCausalLM": (GPT_BIGCODE, "gpt:gpt_bigcode_style"),
    "GPTJForCausalLM": (GPTJ, "layer_norm.gpt_neox:gptj_style"),
    "GPTNeoForCausalLM": (GPT_NEO, "gpt:gpt_neo_style"),
    "GPTNeoXForCausalLM": (GPT_NEOX, "layer_norm.gpt_neox:gpt_neox_style"),
    "GptOssForCausalLM": (GPT_OSS, "experts.gpt_oss:gpt_oss_style"),
    "GraniteForCausalLM": (GRANITE, "llama:llama_style"),
    "GraniteMoeForCausalLM": (GRANITE_MOE, "hybrid.state_space:granite_hybrid_style"),
    "GraniteMoeHybridForCausalLM": (GRANITE_HYBRID, "hybrid.state_space:granite_hybrid_style"),
    "GraniteMoeSharedForCausalLM": (GRANITE_MOE, "hybrid.state_space:granite_hybrid_style"),
    "GraniteMoeSWAForCausalLM": (GRANITE_MOE_SWA, "hybrid.state_space:granite_hybrid_style"),
    "GraniteSWAForCausalLM": (GRANITE_SWA, "llama:llama_style"),
    "HeliumForCausalLM": (HELIUM, "glm:helium_style"),
    "HunYuanDenseV1ForCausalLM": (HUNYUAN, "hunyuan:hunyuan_style"),
    "HunYuanMoEV1ForCausalLM": (HUNYUAN_MOE, "hunyuan:hunyuan_style"),
    "HyperCLOVAXForCausalLM": (HYPERCLOVAX, "granite:hyperclovax_style"),
    "HYV3ForCausalLM": (HY_V3, "llama:llama_style"),
    "InternLM2ForCausalLM": (INTERNLM2, "renamed.llama_like:internlm2_style"),
    "InternLM3ForCausalLM": (INTERNLM3, "llama:llama_style"),
    "InternLMForCausalLM": (INTERNLM, "llama:llama_style"),
    "IQuestCoderForCausalLM": (IQUEST_CODER, "llama:llama_style"),
    "Jais2ForCausalLM": (JAIS2, "layer_norm.starcoder:jais2_style"),
    "JambaForCausalLM": (JAMBA, "hybrid.state_space:jamba_style"),
    "KimiLinearForCausalLM": (KIMI_LINEAR, "hybrid.kimi_linear:kimi_linear_style"),
    "LagunaForCausalLM": (LAGUNA, "experts.laguna:laguna_style"),
    "Lfm2ForCausalLM": (LFM2, "hybrid.lfm2:lfm2_style"),
    "Lfm2MoeForCausalLM": (LFM2_MOE, "hybrid.lfm2:lfm2_style"),
    "Lfm3ForCausalLM": (LFM3, "hybrid.lfm2:lfm3_style"),
    "Llama4ForCausalLM": (LLAMA4, "experts.llama4:llama4_style"),
    "LlamaForCausalLM": (or_bidirectional(LLAMA), "llama:llama_style"),
    "Mamba2ForCausalLM": (MAMBA2, "hybrid.state_space:mamba_style"),
    "MambaForCausalLM": (MAMBA, "hybrid.state_space:mamba_style"),
    "MellumForCausalLM": (MELLUM, "experts.routed:qwen3_moe_style"),
    "MiMoForCausalLM": (MIMO, "renamed.llama_like:mimo_style"),
    "MiniCPM3ForCausalLM": (MINICPM3, "experts.deepseek:deepseek_style"),
    "MiniCPMForCausalLM": (MINICPM, "llama:llama_style"),
    "MiniMaxForCausalLM": (MINIMAX, "hybrid.minimax:minimax_style"),
    "MiniMaxM2ForCausalLM": (MINIMAX_M2, "llama:llama_style"),
    "Ministral3ForCausalLM": (MINISTRAL3, "llama:llama_style"),
    "MinistralForCausalLM": (MINISTRAL, "llama:llama_style"),
    "Mistral4ForCausalLM": (MISTRAL4, "experts.deepseek:mistral4_style"),
    "MistralForCausalLM": (or_bidirectional(MISTRAL), "llama:llama_style"),
    "MixtralForCausalLM": (MIXTRAL, "llama:llama_style"),
    "ModernBertDecoderForCausalLM": (MODERNBERT_DECODER, "layer_norm.modernbert:modernbert_style"),
    "MptForCausalLM": (MPT, "layer_norm.bloom:mpt_style"),
    "NanoChatForCausalLM": (NANOCHAT, "ungated:nanochat_style"),
    "NemotronForCausalLM": (NEMOTRON, "layer_norm.starcoder:nemotron_style"),
    "NemotronHForCausalLM": (NEMOTRON_H, "hybrid.state_space:nemotron_h_style"),
    "Olmo2ForCausalLM": (OLMO2, "olmo:olmo_style"),
    "Olmo3ForCausalLM": (OLMO3, "olmo:olmo_style"),
    "OlmoeForCausalLM": (OLMOE, "llama:llama_style"),
    "OlmoForCausalLM": (OLMO, "layer_norm.starcoder:olmo1_style"),
    "OlmoHybridForCausalLM": (OLMO_HYBRID, "hybrid.olmo_hybrid:olmo_hybrid_style"),
    "OpenAIGPTLMHeadModel": (GPT1, "gpt:gpt1_style"),
    "OPTForCausalLM": (OPT, "gpt:opt_style"),
    "OrionForCausalLM": (ORION, "renamed.llama_like:orion_style"),
    "Phi3ForCausalLM": (PHI3, "phi:phi3_style"),
    "PhiForCausalLM": (PHI, "layer_norm.gpt_neox:phi_style"),
    "PhimoeForCausalLM": (PHIMOE, "experts.routed:phimoe_style"),
    "Qwen2ForCausalLM": (or_bidirectional(QWEN2), "llama:llama_style"),
    "Qwen2MoeForCausalLM": (QWEN2_MOE, "llama:llama_style"),
    "Qwen3_5ForCausalLM": (QWEN3_5, "hybrid.qwen_next:qwen3_5_style"),
    "Qwen3_5MoeForCausalLM": (QWEN3_5_MOE, "hybrid.qwen_next:qwen3_5_style"),
    "Qwen3ForCausalLM": (or_bidirectional(QWEN3), "llama:llama_style"),
    "Qwen3MoeForCausalLM": (QWEN3_MOE, "experts.routed:qwen3_moe_style"),
    "Qwen3NextForCausalLM": (QWEN3_NEXT, "hybrid.qwen_next:qwen3_next_style"),
    "QWenLMHeadModel": (QWEN, "renamed.qwen:qwen_style"),
    "RecurrentGemmaForCausalLM": (RECURRENT_GEMMA, "hybrid.recurrent_gemma:recurrent_gemma_style"),
    "SeedOssForCausalLM": (SEED_OSS, "llama:llama_style"),
    "SmolLM3ForCausalLM": (SMOLLM3, "llama:llama_style"),
    "SolarOpenForCausalLM": (SOLAR_OPEN, "llama:llama_style"),
    "StableLmForCausalLM": (STABLELM, "layer_norm.starcoder:stablelm_style"),
    "Starcoder2ForCausalLM": (STARCODER2, "layer_norm.starcoder:starcoder2_style"),
    "VaultGemmaForCausalLM": (VAULT_GEMMA, "gemma.gemma3:vault_gemma_style"),
    "XverseForCausalLM": (XVERSE, "llama:llama_style"),
    "YoutuForCausalLM": (YOUTU, "experts.deepseek:deepseek_style"),
    "Zamba2ForCausalLM": (ZAMBA2, "hybrid.zamba2:zamba2_style"),
}
"""By architecture: how its `config.json` is read, and the function of `models.family` that gives its style, as
`module:function`. It is named only: nothing here loads torch, and a process needs the modules of one family.
"""
FAMILIES = {name: family for name, (family, _) in _ROWS.items()}
STYLES = {name: style for name, (_, style) in _ROWS.items()}

_ENCODED_ROWS: dict[str, tuple[Family, str]] = {
    "BartForConditionalGeneration": (BART, "encoded.bart:bart_style"),
    "WhisperForConditionalGeneration": (WHISPER, "encoded.whisper:whisper_style"),
}
"""The same of decoders beside encoders, which no text alone runs."""
ENCODED_FAMILIES = {name: family for name, (family, _) in _ENCODED_ROWS.items()}

_ENCODER_ONLY_ROWS: dict[str, tuple[Family, str]] = {
    "AlbertModel": (ALBERT, "encoder_only.albert:albert_style"),
    "BertModel": (BERT, "encoder_only.bert:bert_style"),
    "CamembertModel": (ROBERTA, "encoder_only.bert:bert_style"),
    "DebertaV2Model": (DEBERTA, "encoder_only.deberta:deberta_style"),
    "DistilBertModel": (DISTILBERT, "encoder_only.bert:distilbert_style"),
    "ElectraModel": (ELECTRA, "encoder_only.bert:electra_style"),
    "GteModel": (GTE, "encoder_only.bert:gte_style"),
    "LlamaBidirectionalModel": (without_mask(LLAMA), "llama:llama_style"),
    "ModernBertModel": (MODERNBERT, "encoder_only.modernbert:modernbert_style"),
    "MPNetModel": (MPNET, "encoder_only.mpnet:mpnet_style"),
    "NewModel": (GTE_NEW, "encoder_only.bert:gte_style"),
    "NomicBertModel": (NOMIC_BERT, "encoder_only.bert:nomic_bert_style"),
    "RobertaModel": (ROBERTA, "encoder_only.bert:bert_style"),
    "XLMRobertaModel": (ROBERTA, "encoder_only.bert:bert_style"),
}
"""The same of encoders, which give no next tokens."""
ENCODER_ONLY_FAMILIES = {name: family for name, (family, _) in _ENCODER_ONLY_ROWS.items()}
ALL_STYLES = STYLES | {name: style for name, (_, style) in (_ENCODED_ROWS | _ENCODER_ONLY_ROWS).items()}

OUTSIDE: dict[str, Family] = {}
"""Families of models outside the tree; see `models.registry.register_model`."""

ENTRY_POINTS = "lullm.models"
"""The group of entry points: a name is an architecture, its object a function that registers it, without arguments."""


def is_known(architecture: str) -> bool:
    """Whether lullm, or an installed package, has this architecture. Raises ModelLoadError as `family_of` does."""
    if architecture in ALL_STYLES or architecture in OUTSIDE or architecture in TEXT_MODELS:
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
        known = ", ".join(sorted({*ALL_STYLES, *OUTSIDE}))
        raise ModelLoadError(
            f"the architecture {architecture!r} is not supported; known are: {known}; "
            "others run by the code of transformers, if it has them: install lullm[transformers], model_impl='auto'"
        )
    own = FAMILIES | ENCODED_FAMILIES | ENCODER_ONLY_FAMILIES
    return own.get(architecture) or OUTSIDE[architecture]
