"""Llama 1 to 3 (https://arxiv.org/abs/2407.21783) and the many families that differ from it in their config only.

Dense: Qwen2 (https://arxiv.org/abs/2407.10671) has biases on queries, keys and values, Qwen3
(https://arxiv.org/abs/2505.09388) norms on heads, Mistral (https://arxiv.org/abs/2310.06825) windows, Ministral 3
queries that grow behind the trained length, SmolLM3 layers that do not rotate, Granite factors.

With experts: Mixtral (https://arxiv.org/abs/2401.04088), Qwen2 MoE, OLMoE (https://arxiv.org/abs/2409.02060), GLM-4.5
(https://arxiv.org/abs/2508.06471), Solar Open, K-EXAONE, dots.llm1 (https://arxiv.org/abs/2506.05767), MiniMax-M2
(https://huggingface.co/MiniMaxAI/MiniMax-M2), Hunyuan 3 (https://huggingface.co/tencent/Hy3-preview).
"""

import re

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, plain_mlp
from lullm.models.family.experts.routed import EXPERT_RENAMES, experts_or_mlp
from lullm.models.family.layer_norm.parallel import UNGATED_RENAMES
from lullm.models.rules import drafts_of, rules_of

DRAFTS = re.compile(r"^mtp\.")


def llama_style(config: ModelConfig) -> DecoderStyle:
    family, rules = config.family, rules_of(config, *EXPERT_RENAMES)
    if family.has_drafts:
        rules = rules.plus(drops=(drafts_of(config), DRAFTS))
    return DecoderStyle(rules, qk_norm=family.qk_norm, make_mlp=experts_or_mlp)


def arcee_style(config: ModelConfig) -> DecoderStyle:
    """Llama without gates."""
    return DecoderStyle(rules_of(config, *UNGATED_RENAMES), make_mlp=plain_mlp)
