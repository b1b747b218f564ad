"""gpt-oss: experts with clamped gates, attention with sinks."""

from dataclasses import replace
from functools import partial

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import read_dense, with_rope
from lullm.config.family.experts.reading import TRAINING, read_experts
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds, window_but_every
from lullm.config.field import Data, positive_float
from lullm.config.layer.experts import ClampedGate
from lullm.config.rope import ROPE_KEYS

_OSS_ROPE = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
"""transformers' default."""


def _read_gpt_oss(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    experts = replace(
        read_experts(data, "num_local_experts", "intermediate_size"),
        has_biases=True,
        clamped_gate=ClampedGate(
            alpha=positive_float(data, "swiglu_alpha", 1.702), limit=positive_float(data, "swiglu_limit", 7.0)
        ),
    )
    config = read_dense(with_rope(data, _OSS_ROPE), kinds, head_dim)
    return replace(config, experts=experts, has_sinks=True)


GPT_OSS = Family(
    _read_gpt_oss,
    defaults={
        "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "sliding_window": 128, "head_dim": 64, "num_local_experts": 128,
        "num_experts_per_tok": 4, "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": True,
    },
    reads=ROPE_KEYS | {"intermediate_size"},
    fixed={"norm_topk_prob": True},
    # The experts do not compute `hidden_act`. The last two repeat other keys in the files of the first release.
    ignores=TRAINING | {"hidden_act", "experts_per_token", "initial_context_length"},
    layer_kinds=partial(window_but_every, interval=2),
    encodings=frozenset({"mxfp4"}),
)  # fmt: skip
