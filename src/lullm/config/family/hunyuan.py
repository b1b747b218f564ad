"""HunYuan, dense and with experts: norms on heads after the rotation, a base frequency that is stretched once."""

from dataclasses import replace
from typing import Any

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import DENSE_READS, read_dense
from lullm.config.family.experts.reading import READS, TRAINING, read_experts
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds
from lullm.config.field import Data, positive_float, shown
from lullm.config.rope import read_theta, stated_rope
from lullm.errors import ModelLoadError


def _stretched(data: Data, head_dim: int) -> Data:
    """A rope of type dynamic with an `alpha` has a larger base frequency; its other keys are unused."""
    name, parameters = stated_rope(data)
    if parameters.get("alpha") is None or "dynamic" not in (parameters.get("rope_type"), parameters.get("type")):
        return data
    alpha = positive_float(parameters, "alpha", 1.0, most=1e9)
    theta = read_theta(parameters, "rope_theta", read_theta(data, "rope_theta", 1e4))
    return {**data, name: {"rope_type": "default", "rope_theta": theta * alpha ** (head_dim / (head_dim - 2))}}


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    return read_dense(_stretched(data, head_dim), kinds, head_dim)


def _same_in_all(data: Data, name: str, count: int) -> Any:
    """One number, which a file may repeat for every layer. Raises ModelLoadError: the numbers differ."""
    stated = data.get(name)
    if not isinstance(stated, list):
        return stated
    if len(stated) < count or len(set(map(str, stated[:count]))) != 1:
        raise ModelLoadError(f"config.json: {name} {shown(stated)} must be one number in all of {count} layers")
    return stated[0]


def _read_moe(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    data = {**data, **{name: _same_in_all(data, name, len(kinds)) for name in _BY_LAYER}}
    for name, expected in (("moe_intermediate_size", data["intermediate_size"]), ("num_shared_expert", 1)):
        if data[name] not in (None, expected):
            raise ModelLoadError(f"config.json: {name} {shown(data[name])} is not supported, only {shown(expected)}")
    experts = read_experts(data, "num_experts", "intermediate_size")
    return replace(
        _read(data, kinds, head_dim), experts=replace(experts, shared_intermediate_size=experts.intermediate_size)
    )


_BY_LAYER = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_shared_expert")
_FIXED = {"use_qk_norm": True, "use_cla": False, "mlp_bias": False, "use_rotary_pos_emb": True}
_IGNORES = {
    "eod_token_id", "cla_share_factor", "attention_head_dim", "norm_type", "org_vocab_size", "pad_id",
    # for embeddings and pictures, which these models do not have
    "add_classification_head", "anyres_pooling_size", "class_num", "dense_list", "pool_type",
}  # fmt: skip
HUNYUAN = Family(
    _read,
    defaults={"rms_norm_eps": 1e-5},
    reads=DENSE_READS | {"attention_bias"},
    fixed=_FIXED | {"num_experts": 1},
    ignores=_IGNORES,
)
HUNYUAN_MOE = Family(
    _read_moe,
    aliases={"moe_topk": "num_experts_per_tok", "num_local_experts": "num_experts"},
    defaults={"rms_norm_eps": 1e-5, "num_experts": 1, "moe_topk": 1},
    reads=READS | {"attention_bias", "num_experts", "moe_intermediate_size", "num_shared_expert"},
    fixed=_FIXED | {"norm_topk_prob": True},
    ignores=_IGNORES | TRAINING,
)
