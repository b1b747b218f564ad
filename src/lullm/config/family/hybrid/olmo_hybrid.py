"""OLMo Hybrid: gated delta nets in three of four layers, whose betas reach 2; attention as in OLMo 3 in the others."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import DENSE_READS, read_dense
from lullm.config.family.family import NO_WINDOW, UNUSED_WINDOW, Family
from lullm.config.family.hybrid.qwen_next import read_delta_net
from lullm.config.family.hybrid.reading import only_silu
from lullm.config.family.layer_kinds import FULL, LINEAR, Kinds, kinds_by_type, num_layers
from lullm.config.field import MOST_HEADS, MOST_HIDDEN, Data, boolean, positive_int
from lullm.config.layer.recurrent import DeltaNetConfig
from lullm.config.rope import stated_rope
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import RecurrentState


def _derived(data: Data) -> Data:
    """As many heads as attention, of three quarters of a row, with values twice as wide as keys."""
    num_heads = positive_int(data, "num_attention_heads", most=MOST_HEADS)
    num_keys = positive_int(data, "linear_num_key_heads", num_heads, MOST_HEADS)
    key_dim = positive_int(
        data, "linear_key_head_dim", max(3 * positive_int(data, "hidden_size", most=MOST_HIDDEN) // (4 * num_keys), 1)
    )
    derived = {
        "linear_num_key_heads": num_keys, "linear_num_value_heads": num_heads, "linear_key_head_dim": key_dim,
        "linear_value_head_dim": 2 * key_dim,
    }  # fmt: skip
    return {**data, **{name: value for name, value in derived.items() if data.get(name) is None}}


def _delta_net(data: Data) -> DeltaNetConfig:
    return replace(read_delta_net(data), most_beta=2.0 if boolean(data, "linear_allow_neg_eigval", True) else 1.0)


def _kinds(data: Data) -> Kinds:
    """Without `layer_types`, each fourth layer has attention, or the last one if there are fewer."""
    count = num_layers(data)
    types = [FULL if layer % 4 == 3 else LINEAR for layer in range(count)]
    types = types if FULL in types else [*types[:-1], FULL]
    return kinds_by_type(data, {LINEAR: RecurrentState(_delta_net(data).state_shapes)}, types)


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """If the base frequency is null, as in the released models, heads are not rotated."""
    only_silu(data, "hidden_act")
    if len(set(kinds)) == 1:
        raise ModelLoadError("config.json: layer_types must name both linear_attention and full_attention")
    name, parameters = stated_rope(data)
    turns = parameters.get("rope_theta", 0) is not None or data.get("rope_theta") is not None
    config = read_dense(data if turns else {**data, name: None}, kinds, head_dim)
    return replace(config, ropes=config.ropes if turns else (None,) * len(kinds), recurrent=_delta_net(data))


OLMO_HYBRID = Family(
    _read,
    defaults={
        "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4, "max_position_embeddings": 65536,
        "intermediate_size": 11008,
    },
    reads=DENSE_READS
    | {
        "attention_bias", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
        "linear_value_head_dim", "linear_allow_neg_eigval",
    },
    fixed=NO_WINDOW,
    # of first values
    ignores=UNUSED_WINDOW
    | {"linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"},
    layer_kinds=_kinds,
    derive=_derived,
)  # fmt: skip
