"""Laguna: query heads and ropes by layer, gates on attention's results, a sigmoid router with correction."""

from dataclasses import replace
from typing import Any

from lullm.config.decoder import DecoderConfig, OutputGate
from lullm.config.family.dense import read_dense, ropes_of
from lullm.config.family.experts.reading import TRAINING, layers_by_name, read_experts
from lullm.config.family.family import NO_WINDOW, Family
from lullm.config.family.layer_kinds import Kinds, full_where_not_named
from lullm.config.field import MOST_HEADS, MOST_INTERMEDIATE, Data, positive_float, positive_int, shown
from lullm.config.rope import read_ropes_by_kind
from lullm.errors import ModelLoadError

_ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    experts = read_experts(data, "num_experts", "moe_intermediate_size", layers_by_name(data, 1))
    full, local = read_ropes_by_kind(
        {**data, "rope_parameters": data.get("rope_parameters") or _ROPES}, 5e5, 1e4, has_partial=True
    )
    return replace(
        read_dense({**data, "rope_parameters": None}, kinds, head_dim),
        ropes=ropes_of(kinds, full, local),
        query_heads=_query_heads(data, len(kinds)),
        output_gate=_gate(data.get("gating")),
        experts=replace(
            experts,
            scoring="sigmoid",
            scale=positive_float(data, "moe_routed_scaling_factor", 1.0),
            has_correction=True,
            shared_intermediate_size=positive_int(data, "shared_expert_intermediate_size", most=MOST_INTERMEDIATE),
        ),
    )


def _gate(stated: Any) -> OutputGate:
    if stated is not True and stated not in ("per-head", "per-element"):
        raise ModelLoadError(f"config.json: gating {shown(stated)} is not supported, only per-head and per-element")
    return OutputGate(is_apart=True, is_of_heads=stated != "per-element", gating="softplus")


def _query_heads(data: Data, count: int) -> tuple[int, ...]:
    name, kv_heads = "num_attention_heads_per_layer", positive_int(data, "num_key_value_heads", most=MOST_HEADS)
    stated = data.get(name)
    if stated is None:
        return ()
    if not isinstance(stated, list) or len(stated) != count:
        raise ModelLoadError(f"config.json: {name} must hold a number for each of {count} layers, not {shown(stated)}")
    numbers = tuple(positive_int({name: number}, name, most=MOST_HEADS) for number in stated)
    if wrong := [number for number in numbers if number % kv_heads]:
        raise ModelLoadError(
            f"config.json: {name} must be multiples of num_key_value_heads ({kv_heads}), not {wrong[0]}"
        )
    return numbers


LAGUNA = Family(
    _read,
    aliases={"num_local_experts": "num_experts"},
    defaults={
        "num_key_value_heads": 8, "head_dim": 128, "sliding_window": 512, "intermediate_size": 8192,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "gating": True,
    },
    reads={
        "rms_norm_eps", "hidden_act", "mlp_layer_types", "rope_parameters", "num_attention_heads_per_layer",
        "moe_routed_scaling_factor",
    },
    fixed=NO_WINDOW
    | {
        "attention_bias": False, "moe_apply_router_weight_on_input": False, "moe_router_logit_softcapping": 0.0,
        "norm_topk_prob": True,
    },
    ignores=TRAINING | {"max_window_layers"},
    layer_kinds=full_where_not_named,
)  # fmt: skip
