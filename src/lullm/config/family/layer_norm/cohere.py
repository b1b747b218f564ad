"""Command R and its successors: attention and MLP in parallel, norms by mean and variance, logits times a factor."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import read_dense, ropes_where
from lullm.config.family.experts.reading import TRAINING, behind_dense, read_experts, read_shared
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import FULL, SLIDING, Kinds, full_where_not_named, num_layers, window_but_every
from lullm.config.family.layer_norm.families import EPS, READS
from lullm.config.field import MOST_INTERMEDIATE, MOST_LAYERS, Data, integer, positive_float, positive_int, shown
from lullm.config.layer.experts import ExpertsConfig, Scoring
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import SlidingWindow


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    scale = positive_float(data, "logit_scale", 0.0625)
    return replace(read_dense(data, kinds, head_dim), logit_scale=scale, has_parallel_mlp=True)


def _read_second(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """Layers without a window do not rotate their heads."""
    config = _read(data, kinds, head_dim)
    return replace(config, ropes=ropes_where([isinstance(kind, SlidingWindow) for kind in kinds], config))


def _kinds(data: Data) -> Kinds:
    return window_but_every(data, positive_int(data, "sliding_window_pattern", 4, MOST_LAYERS))


def _moe_kinds(data: Data) -> Kinds:
    """The first dense layers have their own pattern."""
    first = integer(data, "first_k_dense_replace", 0)
    in_front = positive_int(data, "prefix_dense_sliding_window_pattern", 1, MOST_LAYERS)
    behind = positive_int(data, "sliding_window_pattern", 4, MOST_LAYERS)
    types = [
        SLIDING if ((layer + 1) % in_front if layer < first else (layer - first + 1) % behind) else FULL
        for layer in range(num_layers(data))
    ]
    return full_where_not_named({**data, "layer_types": data.get("layer_types") or types})


def _read_moe(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    has_mean = data.get("rms_norm_eps") is None
    size = positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE)
    dense = {
        "intermediate_size": positive_int(data, "prefix_dense_intermediate_size", size, MOST_INTERMEDIATE),
        "rms_norm_eps": data.get("layer_norm_eps") if has_mean else data["rms_norm_eps"],
    }
    config = _read(data | dense, kinds, head_dim)
    layers = behind_dense(data, 0)
    # Dense layers rotate, too, if their pattern has no windows.
    all_turn = positive_int(data, "prefix_dense_sliding_window_pattern", 1, MOST_LAYERS) == 1
    turns = [isinstance(kind, SlidingWindow) or not own and all_turn for kind, own in zip(kinds, layers, strict=True)]
    return replace(config, ropes=ropes_where(turns, config), norms_have_mean=has_mean, experts=_experts(data, layers))


def _experts(data: Data, layers: tuple[bool, ...]) -> ExpertsConfig:
    experts = read_experts(data, "num_experts", "intermediate_size", layers)
    scorings: dict[str, Scoring] = {"softmax": "softmax", "sigmoid": "sigmoid"}
    scoring, combination = data.get("expert_selection_fn"), data.get("shared_expert_combination_strategy")
    if not isinstance(scoring, str) or scoring not in scorings or combination not in ("average", "sum"):
        raise ModelLoadError(
            f"config.json: expert_selection_fn {shown(scoring)} and shared_expert_combination_strategy "
            f"{shown(combination)} are not supported, only {' or '.join(scorings)}, and average or sum"
        )
    shared_size = read_shared(data, experts, "num_shared_experts", 0)
    half = 0.5 if combination == "average" and shared_size else 1.0
    return replace(
        experts,
        scoring=scorings[scoring],
        normalizes=experts.normalizes or scoring == "softmax",
        scale=half,
        shared_scale=half,
        shared_intermediate_size=shared_size,
    )


_DEFAULTS = {"layer_norm_eps": 1e-5, "rope_theta": 500000.0, "logit_scale": 0.0625, "tie_word_embeddings": True}
_NEWER = {"rope_theta": 10000.0, "sliding_window": 4096}

COHERE = Family(_read, aliases=EPS, defaults=_DEFAULTS, reads=READS | {"attention_bias"}, fixed={"use_qk_norm": False})
COHERE2 = Family(
    _read_second,
    aliases=EPS,
    defaults=_DEFAULTS | _NEWER,
    reads=READS | {"attention_bias", "sliding_window_pattern"},
    fixed={
        "use_qk_norm": False, "position_embedding_type": "rope_gptj", "rotary_pct": 1.0, "use_parallel_block": True,
        "use_gated_activation": True,
    },
    # Other keys for properties of the released models.
    ignores={
        "cache_implementation", "order_of_interleaved_layers", "use_embedding_sharing", "use_parallel_embedding",
        "layer_switch",
    },
    layer_kinds=_kinds,
)  # fmt: skip
COHERE2_MOE = Family(
    _read_moe,
    defaults=_DEFAULTS
    | _NEWER
    | {
        "head_dim": 128, "num_experts": 8, "num_experts_per_tok": 2, "expert_selection_fn": "softmax",
        "shared_expert_combination_strategy": "average",
    },
    reads=COHERE2.reads - {"rope_scaling"}
    | {
        "rms_norm_eps", "num_shared_experts", "mlp_layer_types", "norm_topk_prob", "first_k_dense_replace",
        "prefix_dense_sliding_window_pattern", "prefix_dense_intermediate_size",
    },
    fixed={**COHERE2.fixed, "rope_scaling": None},  # transformers passes it over
    ignores=COHERE2.ignores | TRAINING,
    layer_kinds=_moe_kinds,
)  # fmt: skip
