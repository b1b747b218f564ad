"""Phi-3.5-MoE: experts chosen one after the other, norms of mean and variance, longrope as transformers computes it."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import read_dense
from lullm.config.family.experts.reading import READS, TRAINING, read_experts
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds, window_unless_null
from lullm.config.field import Data, boolean, positive_float, shown
from lullm.config.rope import stated_rope
from lullm.errors import ModelLoadError

_NUM_USED = 2
"""Experts per token, whatever the file's value."""
_FACTORS = ("short_mscale", "long_mscale")


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    experts = read_experts(
        {**data, "num_experts_per_tok": _NUM_USED}, "num_local_experts", "intermediate_size", (True,) * len(kinds)
    )
    # Far: more than twice the noise of the training below.
    nearness = 2 * positive_float(data, "router_jitter_noise", 0.01)
    return replace(
        read_dense(_with_one_factor(data), kinds, head_dim),
        experts=replace(experts, scoring="sparsemixer", nearness=nearness),
        has_logit_bias=boolean(data, "lm_head_bias", False),
    )


def _with_one_factor(data: Data) -> Data:
    """transformers uses the short factors at every length, and one of two factors on cos and sin by the length of a
    call.
    """
    name, parameters = stated_rope(data)
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
    if rope_type == "default":
        return data
    short, long = (parameters.get(key) for key in _FACTORS)
    if rope_type != "longrope" or short is None or short != long:
        raise ModelLoadError(
            f"config.json: {name} must be those of longrope, with one factor for all lengths "
            f"({' and '.join(_FACTORS)}), not {shown(parameters)}"
        )
    rope = {key: value for key, value in parameters.items() if key not in _FACTORS}
    return {**data, name: rope | {"attention_factor": short, "long_factor": rope.get("short_factor")}}


PHIMOE = Family(
    _read,
    defaults={
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_key_value_heads": 8, "num_local_experts": 16,
        "router_jitter_noise": 0.01,
    },
    reads=READS - {"num_experts_per_tok"} | {"attention_bias", "lm_head_bias", "sliding_window"},
    fixed={"norm_topk_prob": False},
    ignores=TRAINING - {"router_jitter_noise"} | {
        "input_jitter_noise", "num_experts_per_tok", "hidden_dropout", "embd_pdrop", "resid_pdrop",
    },
    layer_kinds=window_unless_null,
)  # fmt: skip
