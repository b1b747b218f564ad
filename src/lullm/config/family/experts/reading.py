"""The common keys of families with experts: their number, layers, groups, and shared experts."""

from collections.abc import Callable
from dataclasses import replace

from lullm.config.family.dense import DENSE_READS
from lullm.config.family.family import Read
from lullm.config.family.layer_kinds import num_layers
from lullm.config.field import (
    MOST_EXPERTS,
    MOST_INTERMEDIATE,
    Data,
    boolean,
    integer,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.layer.experts import ExpertsConfig
from lullm.errors import ModelLoadError


def read_experts(data: Data, count_name: str, size_name: str, layers: tuple[bool, ...] | None = None) -> ExpertsConfig:
    """The keys of all families. `layers`: whether each has experts; None: all have."""
    layers = (True,) * num_layers(data) if layers is None else layers
    num_experts = positive_int(data, count_name, most=MOST_EXPERTS)
    num_used = positive_int(data, "num_experts_per_tok", most=MOST_EXPERTS)
    if num_used > num_experts:
        raise ModelLoadError(
            f"config.json: num_experts_per_tok ({num_used}) must be at most {count_name} ({num_experts})"
        )
    size = positive_int(data, size_name, most=MOST_INTERMEDIATE)
    return ExpertsConfig(num_experts, num_used, size, layers, normalizes=boolean(data, "norm_topk_prob", True))


def with_experts(read: Read, experts: Callable[[Data], ExpertsConfig]) -> Read:
    """`read` of a family whose files are those of another, and have experts."""
    return lambda data, kinds, head_dim: replace(read(data, kinds, head_dim), experts=experts(data))


def sparse_layers(data: Data) -> tuple[bool, ...]:
    """For Qwen: every `decoder_sparse_step`-th layer, except those in `mlp_only_layers`."""
    step, dense = positive_int(data, "decoder_sparse_step", 1), data.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise ModelLoadError(f"config.json: mlp_only_layers must be a list of layers, not {shown(dense)}")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers(data)))


def layers_by_name(data: Data, num_dense: int) -> tuple[bool, ...]:
    """Whether a layer has experts, by `mlp_layer_types`; without them the first `num_dense` have none."""
    count, stated = num_layers(data), data.get("mlp_layer_types")
    types = ["dense" if layer < num_dense else "sparse" for layer in range(count)] if stated is None else stated
    if not isinstance(types, list) or len(types) != count or not all(kind in ("dense", "sparse") for kind in types):
        raise ModelLoadError(
            f"config.json: mlp_layer_types must name dense or sparse for each of {count} layers, not {shown(stated)}"
        )
    return tuple(kind == "sparse" for kind in types)


def behind_dense(data: Data, default: int, name: str = "first_k_dense_replace") -> tuple[bool, ...]:
    """As `layers_by_name`; the key `name` is the number of first layers without experts."""
    return layers_by_name(data, integer(data, name, default))


def read_groups(data: Data, experts: ExpertsConfig) -> tuple[int, int]:
    """(number of groups, number of used groups)."""
    num_groups, num_used_groups = positive_int(data, "n_group", 1), positive_int(data, "topk_group", 1)
    group_size, rest = divmod(experts.num_experts, num_groups)
    if rest or group_size < 2 or num_used_groups > num_groups or experts.num_used > num_used_groups * group_size:
        raise ModelLoadError(
            f"config.json: n_group ({num_groups}) must part n_routed_experts ({experts.num_experts}) into groups of 2 "
            f"or more, of which topk_group ({num_used_groups}) hold num_experts_per_tok ({experts.num_used})"
        )
    return num_groups, num_used_groups


def read_shared(data: Data, experts: ExpertsConfig, name: str = "n_shared_experts", default: int = 1) -> int | None:
    """The common size of all shared experts."""
    num_shared = integer(data, name, default)
    return num_shared * experts.intermediate_size if num_shared > 0 else None


def read_grouped_experts(data: Data, layers: tuple[bool, ...] | None = None) -> ExpertsConfig:
    """For DeepSeek-V3 and GLM-4.5: sigmoids with a correction for the choice."""
    experts = read_experts(data, "n_routed_experts", "moe_intermediate_size", layers)
    num_groups, num_used_groups = read_groups(data, experts)
    return replace(
        experts,
        scoring="sigmoid",
        scale=positive_float(data, "routed_scaling_factor", 1.0),
        num_groups=num_groups,
        num_used_groups=num_used_groups,
        has_correction=True,
        shared_intermediate_size=read_shared(data, experts),
    )


TRAINING = {"router_aux_loss_coef", "output_router_logits", "router_jitter_noise"}
READS = DENSE_READS | {"num_experts_per_tok"}
