"""The registry: the family file of each architecture of a `config.json`."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from lullm.config.family.dense import LLAMA
from lullm.config.family.family import Family
from lullm.config.family.table import OUTSIDE
from lullm.config.model import ModelConfig, Share
from lullm.errors import ConfigError, UnsupportedError
from lullm.models.family.experts.deepseek import build_axk1, build_deepseek, build_mistral4
from lullm.models.family.experts.gpt_oss import build_gpt_oss
from lullm.models.family.experts.laguna import build_laguna
from lullm.models.family.experts.llama4 import build_llama4
from lullm.models.family.experts.routed import (
    build_afmoe,
    build_dots1,
    build_ernie4_5_moe,
    build_exaone_moe,
    build_glm4_moe,
    build_hy_v3,
    build_minimax_m2,
    build_mixtral,
    build_olmoe,
    build_phimoe,
    build_qwen2_moe,
    build_qwen3_moe,
)
from lullm.models.family.gemma.gemma3 import build_gemma, build_gemma2, build_gemma3, build_vault_gemma
from lullm.models.family.gemma.gemma3n import build_gemma3n
from lullm.models.family.gemma.gemma4 import build_gemma4
from lullm.models.family.glm import build_ernie4_5, build_glm, build_glm4, build_helium
from lullm.models.family.gpt import (
    build_biogpt,
    build_gpt1,
    build_gpt2,
    build_gpt_bigcode,
    build_gpt_neo,
    build_opt,
)
from lullm.models.family.granite import build_hyperclovax
from lullm.models.family.hunyuan import build_hunyuan
from lullm.models.family.hybrid.kimi_linear import build_kimi_linear
from lullm.models.family.hybrid.lfm2 import build_lfm2, build_lfm3
from lullm.models.family.hybrid.minimax import build_minimax
from lullm.models.family.hybrid.olmo_hybrid import build_olmo_hybrid
from lullm.models.family.hybrid.qwen_next import build_qwen3_5, build_qwen3_next
from lullm.models.family.hybrid.recurrent_gemma import build_recurrent_gemma
from lullm.models.family.hybrid.state_space import (
    build_bamba,
    build_falcon_h1,
    build_granite_hybrid,
    build_jamba,
    build_mamba,
    build_nemotron_h,
)
from lullm.models.family.hybrid.zamba2 import build_zamba2
from lullm.models.family.layer_norm.bloom import build_bloom, build_mpt
from lullm.models.family.layer_norm.cohere import build_cohere, build_cohere2_moe
from lullm.models.family.layer_norm.falcon import build_falcon
from lullm.models.family.layer_norm.gpt_neox import build_codegen, build_gpt_neox, build_gptj, build_phi
from lullm.models.family.layer_norm.modernbert import build_modernbert
from lullm.models.family.layer_norm.starcoder import (
    build_jais2,
    build_nemotron,
    build_olmo1,
    build_stablelm,
    build_starcoder2,
)
from lullm.models.family.llama import build_arcee, build_llama, build_seed_oss
from lullm.models.family.mistral import build_mistral
from lullm.models.family.olmo import build_exaone4, build_olmo
from lullm.models.family.phi import build_phi3
from lullm.models.family.qwen import build_qwen2, build_qwen3
from lullm.models.family.ungated import build_apertus, build_nanochat
from lullm.models.protocol import Model
from lullm.weights.rows.cut import cuts_of
from lullm.weights.rule import without_experts

Builder = Callable[[ModelConfig, torch.dtype, int], Model]
"""(config, dtype, max_model_len) -> the model, its parameters on the meta device; see `build_model`."""

BUILDERS: dict[str, Builder] = {
    "AXK1ForCausalLM": build_axk1,
    "ArceeForCausalLM": build_arcee,
    "BambaForCausalLM": build_bamba,
    "BioGptForCausalLM": build_biogpt,
    "BloomForCausalLM": build_bloom,
    "CodeGenForCausalLM": build_codegen,
    "GPTBigCodeForCausalLM": build_gpt_bigcode,
    "GPTNeoForCausalLM": build_gpt_neo,
    "CohereForCausalLM": build_cohere,
    "Cohere2ForCausalLM": build_cohere,
    "Cohere2MoeForCausalLM": build_cohere2_moe,
    "DeepseekV2ForCausalLM": build_deepseek,
    "DeepseekV3ForCausalLM": build_deepseek,
    "Dots1ForCausalLM": build_dots1,
    "Ernie4_5ForCausalLM": build_ernie4_5,
    "Ernie4_5_MoeForCausalLM": build_ernie4_5_moe,
    "Exaone4ForCausalLM": build_exaone4,
    "ExaoneMoeForCausalLM": build_exaone_moe,
    "FalconForCausalLM": build_falcon,
    "FalconH1ForCausalLM": build_falcon_h1,
    "FalconMambaForCausalLM": build_mamba,
    "FlexOlmoForCausalLM": build_olmo,
    "GPT2LMHeadModel": build_gpt2,
    "GPTJForCausalLM": build_gptj,
    "GPTNeoXForCausalLM": build_gpt_neox,
    "GemmaForCausalLM": build_gemma,
    "Gemma2ForCausalLM": build_gemma2,
    "Gemma3ForCausalLM": build_gemma3,
    "Gemma3nForCausalLM": build_gemma3n,
    "Gemma4ForCausalLM": build_gemma4,
    "Gemma4UnifiedForCausalLM": build_gemma4,
    "GlmForCausalLM": build_glm,
    "Glm4ForCausalLM": build_glm4,
    "Glm4MoeForCausalLM": build_glm4_moe,
    "Glm4MoeLiteForCausalLM": build_deepseek,
    "GptOssForCausalLM": build_gpt_oss,
    "GraniteForCausalLM": build_llama,
    "GraniteMoeForCausalLM": build_granite_hybrid,
    "GraniteMoeSharedForCausalLM": build_granite_hybrid,
    "GraniteMoeHybridForCausalLM": build_granite_hybrid,
    "HeliumForCausalLM": build_helium,
    "JambaForCausalLM": build_jamba,
    "LagunaForCausalLM": build_laguna,
    "Lfm2ForCausalLM": build_lfm2,
    "Lfm2MoeForCausalLM": build_lfm2,
    "Lfm3ForCausalLM": build_lfm3,
    "LlamaForCausalLM": build_llama,
    "Llama4ForCausalLM": build_llama4,
    "MambaForCausalLM": build_mamba,
    "Mamba2ForCausalLM": build_mamba,
    "MiniMaxForCausalLM": build_minimax,
    "MiniMaxM2ForCausalLM": build_minimax_m2,
    "MinistralForCausalLM": build_mistral,
    "Ministral3ForCausalLM": build_mistral,
    "MistralForCausalLM": build_mistral,
    "Mistral4ForCausalLM": build_mistral4,
    "MixtralForCausalLM": build_mixtral,
    "ModernBertDecoderForCausalLM": build_modernbert,
    "MptForCausalLM": build_mpt,
    "NemotronForCausalLM": build_nemotron,
    "NemotronHForCausalLM": build_nemotron_h,
    "OlmoForCausalLM": build_olmo1,
    "Olmo2ForCausalLM": build_olmo,
    "Olmo3ForCausalLM": build_olmo,
    "OPTForCausalLM": build_opt,
    "OpenAIGPTLMHeadModel": build_gpt1,
    "OlmoeForCausalLM": build_olmoe,
    "PhiForCausalLM": build_phi,
    "Phi3ForCausalLM": build_phi3,
    "Qwen2ForCausalLM": build_qwen2,
    "Qwen2MoeForCausalLM": build_qwen2_moe,
    "Qwen3ForCausalLM": build_qwen3,
    "Qwen3MoeForCausalLM": build_qwen3_moe,
    "Qwen3NextForCausalLM": build_qwen3_next,
    "Qwen3_5ForCausalLM": build_qwen3_5,
    "Qwen3_5MoeForCausalLM": build_qwen3_5,
    "SeedOssForCausalLM": build_seed_oss,
    "SolarOpenForCausalLM": build_glm4_moe,
    "StableLmForCausalLM": build_stablelm,
    "Starcoder2ForCausalLM": build_starcoder2,
    "SmolLM3ForCausalLM": build_llama,
    "AfmoeForCausalLM": build_afmoe,
    "HYV3ForCausalLM": build_hy_v3,
    "MellumForCausalLM": build_qwen3_moe,
    "KimiLinearForCausalLM": build_kimi_linear,
    "OlmoHybridForCausalLM": build_olmo_hybrid,
    "RecurrentGemmaForCausalLM": build_recurrent_gemma,
    "Zamba2ForCausalLM": build_zamba2,
    "MiniCPM3ForCausalLM": build_deepseek,
    "YoutuForCausalLM": build_deepseek,
    "ApertusForCausalLM": build_apertus,
    "CwmForCausalLM": build_llama,
    "GraniteSWAForCausalLM": build_llama,
    "GraniteMoeSWAForCausalLM": build_granite_hybrid,
    "HunYuanDenseV1ForCausalLM": build_hunyuan,
    "HunYuanMoEV1ForCausalLM": build_hunyuan,
    "HyperCLOVAXForCausalLM": build_hyperclovax,
    "InternLM3ForCausalLM": build_llama,
    "IQuestCoderForCausalLM": build_llama,
    "Jais2ForCausalLM": build_jais2,
    "NanoChatForCausalLM": build_nanochat,
    "PhimoeForCausalLM": build_phimoe,
    "VaultGemmaForCausalLM": build_vault_gemma,
}
"""The same architectures as `config.family.table`."""


_OUTSIDE_BUILDERS: dict[str, Builder] = {}


def register_model(architecture: str, builder: Builder, family: Family = LLAMA) -> None:
    """Register an architecture of another package. A second call for it replaces the first.

    An entry point of the group "lullm.models" calls this when a `config.json` first names its architecture.

    Args:
        architecture: its name in `architectures` of `config.json`.
        builder: (config, dtype, max_model_len) -> the model.
        family: reads the `config.json`; default: with Llama's keys.

    Raises:
        ConfigError: the architecture is one of lullm's own.
    """
    if architecture in BUILDERS:
        raise ConfigError(f"lullm has {architecture} itself; give your model's config.json another architecture")
    OUTSIDE[architecture] = family
    _OUTSIDE_BUILDERS[architecture] = builder


def build_model(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> Model:
    """The model of a config, its parameters of `dtype` on the meta device (see `weights.materialize`).

    `max_model_len` is the number of positions, in tokens, that the rotary table covers. For a worker's share, `rules`
    are those of the whole model, and `cuts` are the worker's parts.

    Raises:
        ModelLoadError: a family cannot be built with these sizes, or there is no memory for its tables.
            UnsupportedError: workers cannot share a model of another package.
    """
    if config.foreign is not None:
        from lullm.models.fallback.model import build_foreign  # loads transformers

        return build_foreign(config, dtype, max_model_len)
    builder = BUILDERS.get(config.architecture) or _OUTSIDE_BUILDERS[config.architecture]
    with _without_collections():
        model = builder(config, dtype, max_model_len)
        if config.share is not None:
            _cut(model, config, config.share, lambda whole: builder(whole, dtype, max_model_len))
    return model


@contextmanager
def _without_collections() -> Iterator[None]:
    """Without garbage collection, whose rounds over all modules take two thirds of the time of 12,032 experts."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def _cut(model: Model, config: ModelConfig, share: Share, build: Callable[[ModelConfig], Model]) -> None:
    """Set the cuts of a worker's model."""
    if config.architecture in _OUTSIDE_BUILDERS:
        raise UnsupportedError(
            f"{config.architecture} is computed by another package, whose layers know nothing of workers that "
            "share them; leave tensor_parallel_size out"
        )
    whole = build(_with_one_expert(share.whole))
    model.rules, model.cuts = whole.rules, {**whole.cuts, **cuts_of(model, whole, share)}
    experts = config.family.experts
    if experts is not None and experts.own is not None:
        model.rules = without_experts(model.rules, experts.num_experts)


def _with_one_expert(whole: ModelConfig) -> ModelConfig:
    """The same with one expert of each layer, for `cuts_of`: 12,032 experts take 3 seconds to build."""
    experts = whole.family.experts
    if experts is None:
        return whole
    return replace(whole, family=replace(whole.family, experts=replace(experts, own=range(1))))
