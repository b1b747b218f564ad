"""Qwen3-Next and Qwen3.5: three of four layers are gated delta nets, the others have attention with an output gate."""

from collections.abc import Set
from dataclasses import replace
from functools import partial

from lullm.config.decoder import DecoderConfig, OutputGate
from lullm.config.family.dense import DENSE_READS, activation
from lullm.config.family.experts.reading import TRAINING, read_experts, sparse_layers
from lullm.config.family.family import NO_WINDOW, UNUSED_WINDOW, Family, Read
from lullm.config.family.hybrid.reading import MOST_KERNEL, only_silu
from lullm.config.family.layer_kinds import FULL, LINEAR, Kinds, kinds_by_type, num_layers
from lullm.config.field import MOST_HEAD_DIM, MOST_HEADS, MOST_INTERMEDIATE, Data, boolean, positive_float, positive_int
from lullm.config.layer.recurrent import DeltaNetConfig
from lullm.config.rope import read_flat_rope
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import RecurrentState


def _layer_kinds(data: Data) -> Kinds:
    """By `layer_types`; without them, each `full_attention_interval`-th layer has attention."""
    interval = positive_int(data, "full_attention_interval", 4)
    types = [LINEAR if (layer + 1) % interval else FULL for layer in range(num_layers(data))]
    return kinds_by_type(data, {LINEAR: RecurrentState(read_delta_net(data).state_shapes)}, types)


def read_delta_net(data: Data) -> DeltaNetConfig:
    config = DeltaNetConfig(
        num_key_heads=positive_int(data, "linear_num_key_heads", most=MOST_HEADS),
        num_value_heads=positive_int(data, "linear_num_value_heads", most=MOST_HEADS),
        key_head_dim=positive_int(data, "linear_key_head_dim", most=MOST_HEAD_DIM),
        value_head_dim=positive_int(data, "linear_value_head_dim", most=MOST_HEAD_DIM),
        kernel_size=positive_int(data, "linear_conv_kernel_dim", most=MOST_KERNEL),
    )
    if config.num_value_heads % config.num_key_heads:
        raise ModelLoadError(
            f"config.json: linear_num_value_heads ({config.num_value_heads}) must be a multiple of "
            f"linear_num_key_heads ({config.num_key_heads})"
        )
    return config


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """Without experts."""
    only_silu(data, "hidden_act")
    share = "partial_rotary_factor"
    rope = read_flat_rope({**data, share: data.get(share) or 0.25}, has_partial=True, ignores=MROPE)
    return DecoderConfig(
        intermediate_size=positive_int(data, "intermediate_size", 1, MOST_INTERMEDIATE),
        rms_norm_eps=positive_float(data, "rms_norm_eps", 1e-6),
        ropes=(rope,) * len(kinds),
        attention_scale=head_dim**-0.5,
        activation=activation(data, "hidden_act"),
        attention_bias=boolean(data, "attention_bias", False),
        output_gate=OutputGate(),
        recurrent=read_delta_net(data),
    )


def _read_moe(data: Data, kinds: Kinds, head_dim: int, is_sparse: bool = False) -> DecoderConfig:
    """`is_sparse`: not every layer has experts."""
    layers = sparse_layers(data) if is_sparse else None
    experts = read_experts(data, "num_experts", "moe_intermediate_size", layers)
    shared_size = positive_int(data, "shared_expert_intermediate_size", most=MOST_INTERMEDIATE)
    config = _read(data, kinds, head_dim)
    return replace(config, experts=replace(experts, shared_intermediate_size=shared_size, shared_is_gated=True))


MROPE = frozenset({"mrope_section", "mrope_interleaved"})
"""The pairs for a picture's height and width: in text these are the position, as for all pairs."""

_DELTA_NET = {
    "head_dim": 256, "hidden_act": "silu", "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip
_EXPERTS = {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"}
_IGNORES = TRAINING | UNUSED_WINDOW | {"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype"}


def _family(read: Read, defaults: Data, reads: Set[str] = frozenset()) -> Family:
    return Family(
        read,
        defaults=_DELTA_NET | defaults,
        reads=DENSE_READS | {"attention_bias", "full_attention_interval", "partial_rotary_factor"} | reads,
        fixed=NO_WINDOW | {"attn_output_gate": True},
        ignores=_IGNORES,
        layer_kinds=_layer_kinds,
    )


QWEN3_NEXT = _family(
    partial(_read_moe, is_sparse=True),
    {
        "num_key_value_heads": 2, "intermediate_size": 5632, "decoder_sparse_step": 1, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512, "norm_topk_prob": True,
    },
    _EXPERTS | {"mlp_only_layers"},
)  # fmt: skip
QWEN3_5 = _family(_read, {"num_key_value_heads": 4, "intermediate_size": 12288})
QWEN3_5_MOE = _family(
    _read_moe,
    {
        "num_key_value_heads": 2, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 8, "num_experts": 256,
    },
    _EXPERTS,
)  # fmt: skip
