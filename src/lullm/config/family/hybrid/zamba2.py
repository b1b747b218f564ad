"""Zamba 2: state spaces (Mamba 2) in every layer, after blocks of attention and an MLP that a few layers share."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig, SharedBlocksConfig
from lullm.config.family.dense import DENSE_READS, read_dense
from lullm.config.family.experts.reading import TRAINING
from lullm.config.family.family import Family
from lullm.config.family.hybrid.reading import StateSpaceKeys
from lullm.config.family.layer_kinds import LINEAR, Kinds, kinds_by_type
from lullm.config.field import (
    MOST_HEADS,
    MOST_HIDDEN,
    MOST_INTERMEDIATE,
    MOST_LAYERS,
    Data,
    boolean,
    positive_int,
    shown,
)
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import FullAttention, Nothing, RecurrentState

_HYBRID = "hybrid"
_LAYERS = [LINEAR] * 6 + [_HYBRID] + ([LINEAR] * 5 + [_HYBRID]) * 6 + [LINEAR] * 4 + [_HYBRID] + [LINEAR] * 3
_LAYERS += [_HYBRID] + [LINEAR] * 2
"""transformers' default."""
_STATE_SPACE = StateSpaceKeys(
    num_heads="n_mamba_heads",
    head_dim="mamba_headdim",  # left out (`ignores`), as in transformers: the heads share the inner size
    num_groups="mamba_ngroups",
    state_size="mamba_d_state",
    kernel_size="mamba_d_conv",
    bias="add_bias_linear",
    expand="mamba_expand",
    least_step="time_step_min",
)


def _own_heads(data: Data) -> Data:
    """Heads divide attention's input: hidden states joined with the embeddings."""
    hidden_size = positive_int(data, "hidden_size", most=MOST_HIDDEN)
    head_dim = 2 * hidden_size // positive_int(data, "num_attention_heads", most=MOST_HEADS)
    stated = data.get("head_dim")
    if stated not in (None, head_dim):
        raise ModelLoadError(
            f"config.json: head_dim (attention_head_dim) {shown(stated)} is not 2 * hidden_size / "
            f"num_attention_heads ({head_dim}), which is what this architecture has"
        )
    if not boolean(data, "tie_word_embeddings", True):
        raise ModelLoadError(
            "config.json: tie_word_embeddings false is not supported: transformers' layers then share no blocks, either"
        )
    stated_size = data.get("intermediate_size") or 4 * hidden_size
    return {**data, "head_dim": head_dim, "intermediate_size": stated_size}


def _kinds(data: Data) -> Kinds:
    """Two entries per layer: the part before the state space, and the state space."""
    kinds = kinds_by_type(data, {LINEAR: Nothing(), _HYBRID: FullAttention()}, _LAYERS)
    stated = data.get("layer_types") or _LAYERS
    if set(stated) - {LINEAR, _HYBRID, "mamba"}:
        raise ModelLoadError(
            f"config.json: layer_types (layers_block_type) {shown(stated)}: in this architecture layers are {LINEAR} "
            f"or {_HYBRID}"
        )
    state = RecurrentState(_STATE_SPACE.read(data).state_shapes)
    return tuple(kind for own in kinds for kind in (own, state))


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    own = {**data, "intermediate_size": positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE)}
    config = read_dense(own, kinds[::2], head_dim)
    if not boolean(data, "use_mem_rope", False):
        config = replace(config, ropes=(None,) * len(config.ropes))
    adapts_attention = boolean(data, "use_shared_attention_adapter", False)
    num_heads, num_kv_heads = data["num_attention_heads"], data.get("num_key_value_heads")
    if adapts_attention and num_kv_heads not in (None, num_heads):
        raise ModelLoadError(
            f"config.json: use_shared_attention_adapter: num_key_value_heads ({num_kv_heads}) must be "
            f"num_attention_heads ({num_heads})"
        )
    return replace(
        config,
        attention_scale=(head_dim / 2) ** -0.5,
        mlp_bias=boolean(data, "add_bias_linear", False),
        recurrent=_STATE_SPACE.read(data),
        kinds_per_layer=2,
        shared_blocks=SharedBlocksConfig(
            num_blocks=positive_int(data, "num_mem_blocks", most=MOST_LAYERS),
            rank=positive_int(data, "adapter_rank", most=MOST_HIDDEN),
            adapts_attention=adapts_attention,
        ),
    )


ZAMBA2 = Family(
    _read,
    aliases={"layers_block_type": "layer_types", "attention_head_dim": "head_dim"},
    defaults={
        "rms_norm_eps": 1e-5, "hidden_act": "gelu", "tie_word_embeddings": True, "max_position_embeddings": 4096,
        "mamba_d_state": 64, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 1, "n_mamba_heads": 8,
        "num_mem_blocks": 1, "adapter_rank": 128, "time_step_min": 0.001,
    },
    reads=DENSE_READS | {"add_bias_linear", "use_mem_rope", "use_shared_attention_adapter"},
    fixed={"use_long_context": False, "use_shared_attention_lora": False},
    ignores=TRAINING
    # of first values, and of how something is computed
    | {"time_step_max", "time_step_floor", "chunk_size", "use_mamba_kernels", "use_mem_eff_path", "num_logits_to_keep"}
    # said by other keys; `use_conv_bias` transformers does not read
    | {"attention_hidden_size", "mamba_headdim", "kv_channels", "num_query_groups", "hybrid_layer_ids"}
    | {"use_conv_bias", "ffn_hidden_size", "gated_linear_unit", "state_size", "lora_rank", "ft_lora", "vocab_file"},
    layer_kinds=_kinds,
    derive=_own_heads,
)  # fmt: skip
