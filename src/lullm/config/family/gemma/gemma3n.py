"""The `config.json` of Gemma 3n (text)."""

from statistics import NormalDist
from typing import Any

from lullm.config.decoder import AltUpConfig, DecoderConfig, LayerInputConfig
from lullm.config.family.dense import activation, ropes_of
from lullm.config.family.family import Family
from lullm.config.family.gemma.gemma4 import layer_inputs, with_shared_layers
from lullm.config.family.layer_kinds import Kinds, window_but_every
from lullm.config.field import (
    MOST_INTERMEDIATE,
    Data,
    boolean,
    integer,
    optional_positive_float,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.rope import ROPE_KEYS, read_ropes_by_kind, read_theta
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import attended_kind

MOST_STREAMS = 1 << 6
_FIRST_SPARSE, _SPARSITY = 10, 0.95
"""In larger files without the key, the first `_FIRST_SPARSE` layers drop the share `_SPARSITY` of their gates."""


def _layer_kinds(data: Data) -> Kinds:
    return with_shared_layers(data, list(window_but_every(data, 5)))


def _by_layer(data: Data, name: str, num_layers: int) -> list[Any]:
    """A list by layer, or one value for all. Raises ModelLoadError."""
    stated = data.get(name)
    if not isinstance(stated, list):
        return [stated] * num_layers
    if len(stated) != num_layers:
        raise ModelLoadError(f"config.json: {name} names {len(stated)} layers, num_hidden_layers is {num_layers}")
    return stated


def _cutoffs(data: Data, num_layers: int) -> tuple[float | None, ...]:
    """The cutoffs of gates: quantiles of the normal distribution for the shares to drop."""
    name = "activation_sparsity_pattern"
    shares = _by_layer(data, name, num_layers)
    if data.get(name) is None:
        is_deep = num_layers > _FIRST_SPARSE
        shares = [_SPARSITY if is_deep and layer < _FIRST_SPARSE else 0.0 for layer in range(num_layers)]
    if not all(isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share < 1 for share in shares):
        raise ModelLoadError(f"config.json: {name} must hold numbers from 0 to below 1, not {shown(data.get(name))}")
    return tuple(NormalDist().inv_cdf(share) if share > 0 else None for share in shares)


def _altup(data: Data) -> AltUpConfig:
    num_streams, active = positive_int(data, "altup_num_inputs", 4, MOST_STREAMS), integer(data, "altup_active_idx", 0)
    if not 0 <= active < num_streams:
        raise ModelLoadError(f"config.json: altup_active_idx {active} must be below altup_num_inputs ({num_streams})")
    rank = positive_int(data, "laurel_rank", 64, MOST_INTERMEDIATE)
    return AltUpConfig(num_streams, active, boolean(data, "altup_correct_scale", True), rank)


def _layer_inputs(data: Data) -> LayerInputConfig:
    """Gemma 4's files may have none."""
    positive_int(data, "hidden_size_per_layer_input")
    inputs = layer_inputs(data)
    assert inputs is not None, "of a positive size"
    return inputs


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    name = "intermediate_size"
    sizes = [positive_int({name: s}, name, most=MOST_INTERMEDIATE) for s in _by_layer(data, name, len(kinds))]
    attended = tuple(attended_kind(kinds, layer) for layer in range(len(kinds)))
    full_theta, local_theta = read_theta(data, "rope_theta", 1e6), read_theta(data, "rope_local_base_freq", 1e4)
    return DecoderConfig(
        intermediate_size=max(sizes),
        intermediate_sizes=tuple(sizes) if len(set(sizes)) > 1 else (),
        rms_norm_eps=positive_float(data, "rms_norm_eps", 1e-6),
        ropes=ropes_of(attended, *read_ropes_by_kind(data, full_theta, local_theta)),
        attention_scale=1.0,
        activation=activation(data, "hidden_activation"),
        attention_bias=boolean(data, "attention_bias", False),
        has_value_norms=True,
        embedding_scale=positive_int(data, "hidden_size") ** 0.5,
        final_soft_cap=optional_positive_float(data, "final_logit_softcapping"),
        layer_inputs=_layer_inputs(data),
        altup=_altup(data),
        gate_cutoffs=_cutoffs(data, len(kinds)),
    )


GEMMA3N = Family(
    _read,
    defaults={
        "vocab_size": 262400, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 35,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "sliding_window": 512,
        "final_logit_softcapping": 30.0, "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
        "num_kv_shared_layers": 15, "laurel_rank": 64, "altup_num_inputs": 4,
    },
    reads=ROPE_KEYS
    | {
        "rope_local_base_freq", "attention_bias", "activation_sparsity_pattern", "altup_active_idx",
        "altup_correct_scale",
    },
    # Scores are not scaled, whatever the files have; clipping is for training.
    ignores={"query_pre_attn_scalar", "altup_coef_clip", "altup_lr_multiplier"},
    layer_kinds=_layer_kinds,
)  # fmt: skip
