"""Architectures of GGUF files whose layers are of several kinds."""

from array import array

from lullm.config.field import Data
from lullm.config.gguf.dense import GRANITE_SCALES, granite_scales
from lullm.config.gguf.experts import GROUPED, counts
from lullm.config.gguf.keys import Architecture, Keys
from lullm.config.gguf.rope import rotated, turned_share


def attends_of(keys: Keys) -> list[bool]:
    """By layer, whether it has attention; other layers have no key heads."""
    heads = keys.get("attention.head_count_kv")
    if not isinstance(heads, array) or len(heads) < keys.num_layers:
        raise keys.fault("attention.head_count_kv must be a list of the heads of each layer")
    return [bool(count) for count in heads[: keys.num_layers]]


def types_of(keys: Keys, other: str = "linear_attention") -> list[str]:
    """The type of each layer: `other` where it has no attention."""
    return ["full_attention" if attends else other for attends in attends_of(keys)]


def _lfm2(keys: Keys) -> Data:
    attends = attends_of(keys)
    convolution = next((layer for layer, has_heads in enumerate(attends) if not has_heads), 0)
    return {
        **rotated(keys, "Lfm2ForCausalLM"),
        "layer_types": types_of(keys, "conv"),
        "conv_L_cache": keys.need("shortconv.l_cache"),
        "conv_bias": keys.has(f"blk.{convolution}.shortconv.in_proj.bias"),
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rms_norm_eps": None,
        "block_auto_adjust_ff_dim": False,
    }


def _lfm2_moe(keys: Keys) -> Data:
    scoring = keys.get("expert_gating_func", 2)
    if scoring != 2:
        raise keys.fault(f"expert_gating_func {scoring!r:.40} is not supported for lfm2moe, only 2 (sigmoid)")
    num_dense = keys.get("leading_dense_block_count") or 0
    data = _lfm2(keys)
    del data["block_auto_adjust_ff_dim"]
    return {
        **data,
        "architectures": ["Lfm2MoeForCausalLM"],
        "num_dense_layers": num_dense,
        **counts(keys, "num_experts", "moe_intermediate_size"),
        "use_expert_bias": keys.has(f"blk.{num_dense}.exp_probs_b.bias"),
        "norm_topk_prob": True,
    }


def _granite_hybrid(keys: Keys) -> Data:
    """State spaces and attention; experts and a shared one, or the shared one alone. 'finetuned': heads are rotated."""
    num_heads, inner_size = keys.need("ssm.time_step_rank"), keys.need("ssm.inner_size")
    shared = keys.number("expert_shared_feed_forward_length") or keys.need("feed_forward_length")
    return {
        **rotated(keys, "GraniteMoeHybridForCausalLM", is_whole=False),
        **granite_scales(keys),
        "layer_types": types_of(keys),
        "position_embedding_type": "rope" if keys.get("rope.scaling.finetuned") else "nope",
        "mamba_n_heads": num_heads,
        "mamba_d_head": inner_size // num_heads,
        "mamba_expand": inner_size // keys.need("embedding_length"),
        **keys.numbers(
            mamba_n_groups="ssm.group_count", mamba_d_state="ssm.state_size", mamba_d_conv="ssm.conv_kernel"
        ),
        **_biases(keys, types_of(keys), "mamba_conv_bias", "mamba_proj_bias"),
        "shared_intermediate_size": shared,
        "num_local_experts": keys.number("expert_count") or 0,
        "num_experts_per_tok": keys.number("expert_used_count"),
    }


def _biases(keys: Keys, types: list[str], convolution: str, projection: str) -> Data:
    """Whether the first state space has biases, under these names of the config."""
    space = types.index("linear_attention") if "linear_attention" in types else 0
    return {
        convolution: keys.has(f"blk.{space}.ssm_conv1d.bias"),
        projection: keys.has(f"blk.{space}.ssm_in.bias"),
    }


def _expansion(keys: Keys) -> int:
    """The width of the channels as a multiple of the hidden size. Raises ModelLoadError: no whole number."""
    expansion, rest = divmod(keys.need("ssm.inner_size"), keys.need("embedding_length"))
    if rest or not expansion:
        raise keys.fault("ssm.inner_size must be a multiple of embedding_length")
    return int(expansion)


def _alone(keys: Keys, architecture: str, **sizes: str) -> Data:
    """Layers with a state space only. sizes: keys of numbers, by names of the config."""
    return {
        "architectures": [architecture],
        "rms_norm_eps": None,
        "layer_norm_epsilon": keys.number("attention.layer_norm_rms_epsilon"),
        "use_bias": keys.has("blk.0.ssm_in.bias"),
        "use_conv_bias": keys.has("blk.0.ssm_conv1d.bias"),
        "expand": _expansion(keys),
        **keys.numbers(state_size="ssm.state_size", conv_kernel="ssm.conv_kernel", **sizes),
    }


def _mamba(keys: Keys) -> Data:
    name = "FalconMambaForCausalLM" if keys.get("ssm.dt_b_c_rms") else "MambaForCausalLM"
    return _alone(keys, name, time_step_rank="ssm.time_step_rank")


def _mamba2(keys: Keys) -> Data:
    data = _alone(keys, "Mamba2ForCausalLM", num_heads="ssm.time_step_rank", n_groups="ssm.group_count")
    return {**data, "head_dim": keys.need("ssm.inner_size") // data["num_heads"]}


def _falcon_h1(keys: Keys) -> Data:
    """The weights of a file include its factors. Gates come before the norm, if there is one."""
    sizes = keys.numbers(
        mamba_d_ssm="ssm.inner_size", mamba_n_heads="ssm.time_step_rank", mamba_n_groups="ssm.group_count",
        mamba_d_state="ssm.state_size", mamba_d_conv="ssm.conv_kernel",
    )  # fmt: skip
    return {
        **rotated(keys, "FalconH1ForCausalLM"),
        "mamba_d_head": sizes["mamba_d_ssm"] // sizes["mamba_n_heads"],
        "mamba_rms_norm": keys.has("blk.0.ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "mamba_conv_bias": keys.has("blk.0.ssm_conv1d.bias"),
        **sizes,
    }


def _jamba(keys: Keys) -> Data:
    """A file lists the layers with attention and with experts; a config has a period for each."""
    period, offset = _period(keys, attends_of(keys))
    data = {
        "architectures": ["JambaForCausalLM"],
        "attn_layer_period": period,
        "attn_layer_offset": offset,
        **_biases(keys, types_of(keys), "mamba_conv_bias", "mamba_proj_bias"),
        "mamba_expand": _expansion(keys),
        "num_experts": 1,
        **keys.numbers(
            mamba_d_state="ssm.state_size", mamba_d_conv="ssm.conv_kernel", mamba_dt_rank="ssm.time_step_rank"
        ),
    }
    routed = [keys.has(f"blk.{layer}.ffn_gate_inp.weight") for layer in range(keys.num_layers)]
    if any(routed):
        period, offset = _period(keys, routed)
        data |= {"expert_layer_period": period, "expert_layer_offset": offset}
        data |= keys.numbers(num_experts="expert_count", num_experts_per_tok="expert_used_count")
    return data


def _period(keys: Keys, layers: list[bool]) -> tuple[int, int]:
    """(period, first) of the marked layers. Raises ModelLoadError: they have no period."""
    offset, count = [*layers, True].index(True), len(layers)
    for period in range(offset + 1, count + 1):
        if all((layer % period == offset) == is_one for layer, is_one in enumerate(layers)):
            return period, offset
    raise keys.fault("layers with attention, or with experts, have no period, which is not supported")


def _nemotron_h(keys: Keys) -> Data:
    """Each layer has one kind: an MLP if it has inner elements, attention if it has heads."""
    inner = keys.get("feed_forward_length")
    if not isinstance(inner, array) or len(inner) < keys.num_layers:
        raise keys.fault("feed_forward_length must be a list of the inner sizes of each layer")
    num_heads = keys.need("ssm.time_step_rank")
    kinds = ["mlp" if size else kind for size, kind in zip(inner[: keys.num_layers], types_of(keys), strict=True)]
    return {
        "architectures": ["NemotronHForCausalLM"],
        "layers_block_type": kinds,
        "rope_theta": None,
        "num_hidden_layers": None,
        "rms_norm_eps": None,
        "layer_norm_epsilon": keys.number("attention.layer_norm_rms_epsilon")
        or keys.number("attention.layer_norm_epsilon"),
        "mamba_num_heads": num_heads,
        "mamba_head_dim": keys.need("ssm.inner_size") // num_heads,
        **keys.numbers(n_groups="ssm.group_count", ssm_state_size="ssm.state_size", conv_kernel="ssm.conv_kernel"),
        **_biases(keys, kinds, "use_conv_bias", "use_bias"),
    }


def _nemotron_h_moe(keys: Keys) -> Data:
    """Nemotron 3: separate layers of experts."""
    data = _nemotron_h(keys)
    kinds = [
        "moe" if kind == "mlp" and keys.has(f"blk.{layer}.ffn_gate_inp.weight") else kind
        for layer, kind in enumerate(data["layers_block_type"])
    ]
    return {
        **data,
        "layers_block_type": kinds,
        **counts(keys, "n_routed_experts", "moe_intermediate_size"),
        "moe_shared_expert_intermediate_size": keys.need("expert_shared_feed_forward_length"),
        "moe_latent_size": keys.number("moe_latent_size"),
        "norm_topk_prob": bool(keys.get("expert_weights_norm")),
        "routed_scaling_factor": keys.number("expert_weights_scale"),
        "n_group": keys.number("expert_group_count") or 1,
        "topk_group": keys.number("expert_group_used_count") or 1,
    }


def _qwen3_5(keys: Keys) -> Data:
    """The pairs for a picture's height and width (rope.dimension_sections) change nothing in text."""
    num_heads = keys.need("ssm.time_step_rank")
    return {
        **rotated(keys, "Qwen3_5ForCausalLM", is_whole=False),
        "partial_rotary_factor": turned_share(keys),
        "full_attention_interval": keys.number("full_attention_interval"),
        "linear_num_value_heads": num_heads,
        "linear_value_head_dim": keys.need("ssm.inner_size") // num_heads,
        **keys.numbers(
            linear_num_key_heads="ssm.group_count",
            linear_key_head_dim="ssm.state_size",
            linear_conv_kernel_dim="ssm.conv_kernel",
        ),
    }


def _with_experts(keys: Keys, architecture: str) -> Data:
    return {
        **_qwen3_5(keys),
        "architectures": [architecture],
        **counts(keys, "num_experts", "moe_intermediate_size"),
        "shared_expert_intermediate_size": keys.need("expert_shared_feed_forward_length"),
    }


def _qwen3_next(keys: Keys) -> Data:
    return {**_with_experts(keys, "Qwen3NextForCausalLM"), "norm_topk_prob": True}


def _qwen3_5_moe(keys: Keys) -> Data:
    return _with_experts(keys, "Qwen3_5MoeForCausalLM")


HYBRID: dict[str, Architecture] = {
    "falcon-h1": Architecture(_falcon_h1),
    "granitehybrid": Architecture(_granite_hybrid, GRANITE_SCALES, is_hybrid=True),
    "jamba": Architecture(_jamba, is_hybrid=True),
    "mamba": Architecture(_mamba, has_heads=False),
    "mamba2": Architecture(_mamba2, has_heads=False),
    "nemotron_h": Architecture(_nemotron_h, is_hybrid=True),
    "nemotron_h_moe": Architecture(_nemotron_h_moe, GROUPED - {"leading_dense_block_count"}, is_hybrid=True),
    "qwen35": Architecture(_qwen3_5),
    "qwen35moe": Architecture(_qwen3_5_moe),
    "qwen3next": Architecture(_qwen3_next),
    "lfm2": Architecture(_lfm2, is_hybrid=True),
    "lfm2moe": Architecture(_lfm2_moe, {"leading_dense_block_count"}, is_hybrid=True),
}
