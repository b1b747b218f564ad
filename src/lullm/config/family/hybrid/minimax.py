"""MiniMax: lightning attention, a state that forgets at a fixed rate by head, in every second layer; experts in all."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig, NormedStream
from lullm.config.family.dense import read_dense
from lullm.config.family.experts.reading import READS, TRAINING, read_experts
from lullm.config.family.family import NO_WINDOW, Family
from lullm.config.family.layer_kinds import FULL, LINEAR, Kinds, kinds_by_type, num_layers
from lullm.config.field import MOST_HEAD_DIM, MOST_HEADS, Data, positive_float, positive_int
from lullm.config.layer.recurrent import StateSpaceConfig
from lullm.types.layer_kind import RecurrentState

_PARTS = ("full_attn", "linear_attn", "mlp")
_FACTORS = frozenset(f"{part}_{name}_factor" for part in _PARTS for name in ("alpha", "beta"))


def _space(data: Data) -> StateSpaceConfig:
    """Keys write and queries read, separately for each head, without a convolution."""
    heads = positive_int(data, "num_attention_heads", most=MOST_HEADS)
    size = positive_int(data, "head_dim", positive_int(data, "hidden_size") // heads, MOST_HEAD_DIM)
    return StateSpaceConfig(heads, size, num_groups=heads, state_size=size, kernel_size=1, gate="no norm")


def _kinds(data: Data) -> Kinds:
    types = [LINEAR if layer % 2 else FULL for layer in range(num_layers(data))]
    return kinds_by_type(data, {LINEAR: RecurrentState(_space(data).state_shapes)}, types)


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    kept, added = (
        [positive_float(data, f"{part}_{name}_factor", 1.0) for part in _PARTS] for name in ("alpha", "beta")
    )
    return replace(
        read_dense(data, kinds, head_dim),
        normed_stream=NormedStream(*kept, *added),
        recurrent=_space(data),
        experts=read_experts(data, "num_local_experts", "intermediate_size"),
    )


MINIMAX = Family(
    _read,
    aliases={"num_experts": "num_local_experts"},
    defaults={
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_key_value_heads": 8, "num_experts_per_tok": 2,
        "num_local_experts": 8,
    },
    reads=READS | _FACTORS,
    fixed=NO_WINDOW | {"sliding_window": None, "norm_topk_prob": True},
    # The number of tokens that are computed together.
    ignores=TRAINING | {"block_size", "max_window_layers"},
    layer_kinds=_kinds,
)  # fmt: skip
