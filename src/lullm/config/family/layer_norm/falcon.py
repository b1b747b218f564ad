"""The `config.json` of Falcon: 7B and similar models share one key head, 40B and later have groups."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import activation, read_dense
from lullm.config.family.family import NO_WINDOW, UNUSED_WINDOW, Family
from lullm.config.family.layer_kinds import Kinds, full_attention
from lullm.config.family.layer_norm.alibi import with_places, with_slopes
from lullm.config.family.layer_norm.families import DROPOUTS, whole_heads
from lullm.config.field import MOST_HEADS, MOST_INTERMEDIATE, Data, boolean, positive_int
from lullm.config.rope import ROPE_KEYS


def _derive(data: Data) -> Data:
    """The number of key heads, and the inner size, by default 4 times the hidden size."""
    data = whole_heads(data)
    num_heads = positive_int(data, "num_attention_heads", most=MOST_HEADS)
    num_kv_heads = num_heads
    if boolean(data, "new_decoder_architecture", False):
        num_kv_heads = positive_int(data, "num_kv_heads", num_heads, MOST_HEADS)
    elif boolean(data, "multi_query", True):
        num_kv_heads = 1
    size = positive_int(data, "ffn_hidden_size", 4 * positive_int(data, "hidden_size"), MOST_INTERMEDIATE)
    return {**data, "num_key_value_heads": num_kv_heads, "intermediate_size": size}


def _layer_kinds(data: Data) -> Kinds:
    return with_places(data) if boolean(data, "alibi", False) else full_attention(data)


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    has_groups, bias = boolean(data, "new_decoder_architecture", False), boolean(data, "bias", False)
    config = read_dense(data, kinds, head_dim)
    if boolean(data, "alibi", False):  # scores are scaled after the bias is added
        config = with_slopes(config, positive_int(data, "num_attention_heads", most=MOST_HEADS), head_dim**-0.5)
    return replace(
        config,
        activation=activation(data, "activation"),
        attention_bias=bias,
        mlp_bias=bias,
        has_parallel_mlp=has_groups or boolean(data, "parallel_attn", True),
        has_mlp_norm=has_groups and positive_int(data, "num_ln_in_parallel_attn", 2, most=2) == 2,
    )


FALCON = Family(
    _read,
    aliases={
        "layer_norm_epsilon": "rms_norm_eps",
        "n_embed": "hidden_size",
    },
    defaults={
        "layer_norm_epsilon": 1e-5, "activation": "gelu", "tie_word_embeddings": True, "max_position_embeddings": 2048,
    },
    reads=ROPE_KEYS
    | {
        "alibi", "bias", "ffn_hidden_size", "multi_query", "new_decoder_architecture", "num_kv_heads",
        "num_ln_in_parallel_attn", "parallel_attn",
    },
    fixed=NO_WINDOW | {"apply_residual_connection_post_layernorm": False},
    # Two have other names here, by which transformers reads them; the last repeats `ffn_hidden_size`.
    ignores=UNUSED_WINDOW | DROPOUTS | {"num_key_value_heads", "intermediate_size", "ff_factor"},
    layer_kinds=_layer_kinds,
    derive=_derive,
)  # fmt: skip
