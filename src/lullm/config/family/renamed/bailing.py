"""Ling and Ring (https://arxiv.org/abs/2503.05139, https://arxiv.org/abs/2510.22115): experts beside shared ones.

Ling 1 and 1.5 have a softmax router. Those of version 2 have GLM-4.5's: sigmoids with a correction, and groups.
"""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import read_dense, read_partial, rotated_share
from lullm.config.family.experts.reading import (
    READS,
    TRAINING,
    behind_dense,
    read_experts,
    read_grouped_experts,
)
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds
from lullm.config.field import MOST_INTERMEDIATE, Data, boolean, integer, positive_int, shown
from lullm.config.layer.experts import ExpertsConfig
from lullm.errors import ModelLoadError


def _with_shared(data: Data, experts: ExpertsConfig) -> ExpertsConfig:
    """With shared experts of their own size, as one. A single expert's share is its score, whatever the file says."""
    count = integer(data, "n_shared_experts", 0)
    size = positive_int(data, "moe_shared_expert_intermediate_size", experts.intermediate_size, MOST_INTERMEDIATE)
    normalizes = experts.normalizes and experts.num_used > 1
    return replace(experts, shared_intermediate_size=count * size if count > 0 else None, normalizes=normalizes)


def _read_first(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    if boolean(data, "use_bias", True):
        raise ModelLoadError(
            "config.json: use_bias true, or missing, which means the same, is not supported: experts have no biases"
        )
    experts = read_experts(data, "n_routed_experts", "moe_intermediate_size", behind_dense(data, 0))
    return replace(
        read_dense(data, kinds, head_dim),
        experts=_with_shared(data, experts),
        attention_bias=boolean(data, "use_qkv_bias", False),
        output_bias=False,
    )


def _read_second(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """Files say the part of a head that is rotated as a share, as a number of elements, or both."""
    stated, part = data.get("partial_rotary_factor"), 0.5
    if data.get("rotary_dim") is not None:
        part = rotated_share(data, head_dim)
        if stated is not None and int(stated * head_dim) != int(part * head_dim):
            raise ModelLoadError(
                f"config.json: rotary_dim ({shown(data['rotary_dim'])}) and partial_rotary_factor ({shown(stated)}) of "
                f"a head of {head_dim} elements contradict each other"
            )
    has_bias = boolean(data, "use_bias", True)
    experts = read_grouped_experts(data, behind_dense(data, 0))
    return replace(
        read_partial(data, kinds, head_dim, default=part),
        experts=_with_shared(data, experts),
        attention_bias=has_bias or boolean(data, "use_qkv_bias", False),
        output_bias=has_bias,
        qk_norm="heads" if boolean(data, "use_qk_norm", False) else None,
    )


_READS = READS | {
    "moe_intermediate_size", "first_k_dense_replace", "norm_topk_prob", "use_bias", "use_qkv_bias",
    "moe_shared_expert_intermediate_size",
}  # fmt: skip
_ALIASES = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}
_FIXED = {
    "use_rmsnorm": True, "norm_head": False, "norm_softmax": False, "multi_gate": False,
    "moe_router_enable_shared_expert": True,
}  # fmt: skip
# Products of the router are computed in the model's type, and scored in float32.
_IGNORES = TRAINING | {"embedding_dropout", "output_dropout", "router_dtype", "router_type"}

BAILING = Family(
    _read_first,
    aliases=_ALIASES,
    defaults={"rms_norm_eps": 1e-5, "num_shared_experts": 0},
    reads=_READS,
    fixed=_FIXED | {"score_function": "softmax", "moe_router_enable_expert_bias": False, "use_qk_norm": False},
    ignores=_IGNORES,
)
BAILING_2 = Family(
    _read_second,
    aliases=_ALIASES,
    defaults={
        "rms_norm_eps": 1e-5, "num_shared_experts": 0, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
    },
    reads=_READS - {"norm_topk_prob"} | {"partial_rotary_factor", "rotary_dim", "use_qk_norm"},
    fixed=_FIXED | {"score_function": "sigmoid", "moe_router_enable_expert_bias": True, "norm_topk_prob": True},
    # Layers that draft tokens are not loaded.
    ignores=_IGNORES | {"num_nextn_predict_layers", "mtp_loss_scaling_factor"},
    always={"has_drafts": True},
)  # fmt: skip
