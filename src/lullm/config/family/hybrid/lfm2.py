"""LFM2, dense and with experts, and LFM3: gated short convolutions in most layers, attention in the others."""

from dataclasses import replace
from functools import partial

from lullm.config.decoder import DecoderConfig, OutputGate
from lullm.config.family.dense import ropes_of
from lullm.config.family.experts.reading import TRAINING, behind_dense, read_experts
from lullm.config.family.family import Family
from lullm.config.family.hybrid.reading import MOST_KERNEL
from lullm.config.family.layer_kinds import FULL, SLIDING, Kinds, kinds_by_type, num_layers
from lullm.config.field import MOST_INTERMEDIATE, Data, boolean, positive_float, positive_int, shown
from lullm.config.layer.recurrent import ShortConvolutionConfig
from lullm.config.rope import ROPE_KEYS, RopeConfig, read_flat_rope, read_ropes_by_kind
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import LayerKind, RecurrentState, SlidingWindow
from lullm.units import round_up

CONVOLUTION = "conv"


def _convolution(data: Data) -> ShortConvolutionConfig:
    return ShortConvolutionConfig(
        num_channels=positive_int(data, "hidden_size"),
        kernel_size=positive_int(data, "conv_L_cache", most=MOST_KERNEL),
        has_bias=boolean(data, "conv_bias", False),
    )


def _layer_kinds(data: Data, has_indices: bool) -> Kinds:
    """By `layer_types`, or by `full_attn_idxs` of older files; without both all layers have attention."""
    indices = data.get("full_attn_idxs") if has_indices else None
    if indices is not None and (not isinstance(indices, list) or not all(isinstance(index, int) for index in indices)):
        raise ModelLoadError(f"config.json: full_attn_idxs must be a list of layers, not {shown(indices)}")
    types = [FULL if indices is None or layer in indices else CONVOLUTION for layer in range(num_layers(data))]
    return kinds_by_type(data, {CONVOLUTION: RecurrentState(_convolution(data).state_shapes)}, types)


def _lfm3_kinds(data: Data) -> Kinds:
    """By `layer_types`; without them one of four layers has attention, one a window, except the first."""
    others: dict[str, LayerKind] = {CONVOLUTION: RecurrentState(_convolution(data).state_shapes)}
    places = {2: FULL, 0: SLIDING}
    types = [places.get(layer % 4, CONVOLUTION) if layer else CONVOLUTION for layer in range(num_layers(data))]
    stated = data.get("layer_types")
    if SLIDING in (stated if isinstance(stated, list) else types):
        others[SLIDING] = SlidingWindow(positive_int(data, "sliding_window"))
    return kinds_by_type(data, others, types)


def _read(data: Data, kinds: Kinds, head_dim: int, ropes: tuple[RopeConfig, ...] = ()) -> DecoderConfig:
    return DecoderConfig(
        intermediate_size=_intermediate_size(data),
        rms_norm_eps=positive_float(data, "norm_eps", 1e-5),
        ropes=ropes or (read_flat_rope(data),) * len(kinds),
        attention_scale=head_dim**-0.5,
        recurrent=_convolution(data),
    )


def _read_lfm3(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    ropes = ropes_of(
        kinds, *read_ropes_by_kind({**data, "rope_parameters": data.get("rope_parameters") or _ROPES}, 1e6, 1e6)
    )
    return replace(
        _read(data, kinds, head_dim, ropes),
        has_post_norms=boolean(data, "use_sandwich_norm", True),
        output_gate=_HEAD_GATE if boolean(data, "use_attention_gate", True) else None,
    )


_HEAD_GATE = OutputGate(is_apart=True, is_of_heads=True)
_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}


def _intermediate_size(data: Data) -> int:
    """Dense files may state a size that is reduced to two thirds, then rounded up."""
    size = positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE)
    if not boolean(data, "block_auto_adjust_ff_dim", False):
        return size
    factor, multiple = positive_float(data, "block_ffn_dim_multiplier", 1.0), positive_int(data, "block_multiple_of")
    size = round_up(int(factor * int(2 * size / 3)), multiple)
    if size > MOST_INTERMEDIATE:
        raise ModelLoadError(
            f"config.json: intermediate_size times block_ffn_dim_multiplier ({factor:g}), rounded up to a multiple of "
            f"block_multiple_of ({multiple}), must be at most {MOST_INTERMEDIATE}"
        )
    return size


def _read_moe(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    experts = replace(
        read_experts(data, "num_experts", "moe_intermediate_size", behind_dense(data, 2, "num_dense_layers")),
        scoring="sigmoid",
        scale=positive_float(data, "routed_scaling_factor", 1.0),
        has_correction=boolean(data, "use_expert_bias", True),
    )
    return replace(_read(data, kinds, head_dim), experts=experts)


_DEFAULTS = {"rope_theta": 1e6, "norm_eps": 1e-5, "conv_L_cache": 3, "tie_word_embeddings": True}
_READS = ROPE_KEYS | {"intermediate_size", "conv_bias"}

_REPEATED = {
    "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_xavier_init",
    "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "block_use_swiglu", "use_pos_enc",
}  # fmt: skip
"""The released files repeat some sizes, and have keys of the initialization; transformers reads none of these."""

LFM2 = Family(
    _read,
    defaults=_DEFAULTS
    | {
        "num_key_value_heads": 8,
        "intermediate_size": 12288,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
    },
    aliases={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
    reads=_READS | {"full_attn_idxs"},
    ignores=_REPEATED,
    layer_kinds=partial(_layer_kinds, has_indices=True),
)
LFM3 = Family(
    _read_lfm3,
    defaults={
        "norm_eps": 1e-5, "conv_L_cache": 7, "tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 7680, "sliding_window": 256, "use_sandwich_norm": True, "use_attention_gate": True,
    },
    aliases={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
    reads={"rope_parameters", "conv_bias"},
    fixed={"attention_bias": False},
    layer_kinds=_lfm3_kinds,
)  # fmt: skip
LFM2_MOE = Family(
    _read_moe,
    defaults=_DEFAULTS
    | {
        "num_key_value_heads": 8, "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_experts": 32,
        "num_experts_per_tok": 4, "num_dense_layers": 2,
    },
    aliases={"tie_embedding": "tie_word_embeddings"},
    reads=_READS | {"use_expert_bias", "routed_scaling_factor", "norm_topk_prob"},
    ignores=TRAINING,
    layer_kinds=partial(_layer_kinds, has_indices=False),
)  # fmt: skip
