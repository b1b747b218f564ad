"""Kimi Linear: delta nets with a decay per element of a key in three of four layers, latent vectors in the others."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.experts.reading import TRAINING, behind_dense, read_grouped_experts, with_experts
from lullm.config.family.family import Family
from lullm.config.family.hybrid.reading import MOST_KERNEL, only_silu
from lullm.config.family.latent import as_one_head, read_latent
from lullm.config.family.layer_kinds import FULL, LINEAR, Kinds, kinds_by_type, num_layers
from lullm.config.field import MOST_HEAD_DIM, MOST_HEADS, Data, optional_object, positive_int, shown
from lullm.config.layer.recurrent import DeltaNetConfig
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import RecurrentState

_OWN = "linear_attn_config"
_NAMES = {
    "head_dim": "linear_head_dim", "num_heads": "linear_num_heads", "short_conv_kernel_size": "linear_conv_kernel_dim",
}  # fmt: skip
"""Names of the released files, and of transformers."""
_LISTS = {"full_attn_layers": FULL, "kda_layers": LINEAR}


def _derived(data: Data) -> Data:
    """`head_dim` of the released files has no meaning."""
    own = optional_object(data, _OWN)
    if unknown := own.keys() - _NAMES.keys() - _LISTS.keys():
        raise ModelLoadError(f"config.json: {_OWN} holds {', '.join(sorted(unknown))}, of which nothing is known")
    stated = {ours: own[theirs] for theirs, ours in _NAMES.items() if theirs in own}
    return as_one_head({**data, **stated, "head_dim": None, "rope_interleave": False})


def _delta_net(data: Data) -> DeltaNetConfig:
    num_heads = positive_int(data, "linear_num_heads", most=MOST_HEADS)
    size = positive_int(data, "linear_head_dim", most=MOST_HEAD_DIM)
    kernel = positive_int(data, "linear_conv_kernel_dim", most=MOST_KERNEL)
    return DeltaNetConfig(num_heads, num_heads, size, size, kernel, forgets_by_key=True)


def _kinds(data: Data) -> Kinds:
    """By `layer_types`, or the released files' lists (layers count from 1); without both each fourth has attention."""
    count, own = num_layers(data), optional_object(data, _OWN)
    types = [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(count)]
    if _LISTS.keys() <= own.keys():
        named = {layer: kind for name, kind in _LISTS.items() for layer in own[name]}
        if sorted(named) != list(range(1, count + 1)):
            raise ModelLoadError(f"config.json: {_OWN} {shown(own)} does not name each of the layers 1 to {count}")
        types = [named[layer + 1] for layer in range(count)]
    return kinds_by_type(data, {LINEAR: RecurrentState(_delta_net(data).state_shapes)}, types)


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    only_silu(data, "hidden_act")
    config = read_latent(data, kinds, head_dim)
    return replace(config, ropes=(None,) * len(kinds), recurrent=_delta_net(data))


KIMI_LINEAR = Family(
    with_experts(_read, lambda data: read_grouped_experts(data, behind_dense(data, 1))),
    aliases={
        "model_max_length": "max_position_embeddings", "moe_renormalize": "norm_topk_prob",
        "num_expert_group": "n_group", "num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts",
        "num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts",
    },
    defaults={
        "rms_norm_eps": 1e-5, "num_attention_heads": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "moe_intermediate_size": 1024, "intermediate_size": 9216, "routed_scaling_factor": 2.446,
        "linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 1048576,
    },
    reads={
        "hidden_act", "attention_bias", "q_lora_rank", "norm_topk_prob", "n_group", "topk_group", "layer_types",
        "mlp_layer_types", "first_k_dense_replace", _OWN,
    },
    fixed={"moe_router_activation_func": "sigmoid", "mla_use_nope": True, "moe_layer_freq": 1},
    # No head is rotated, so keys of the rotation have no meaning. Layers that draft tokens are not loaded.
    ignores=TRAINING
    | {"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "qk_head_dim", "use_grouped_topk"}
    | {"num_nextn_predict_layers"},
    layer_kinds=_kinds,
    derive=_derived,
)  # fmt: skip
