"""Families whose scores fall with the distance of keys (ALiBi, https://arxiv.org/abs/2108.12409): BLOOM and MPT."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.family import NO_WINDOW, UNUSED_WINDOW, Family
from lullm.config.family.layer_kinds import Kinds, full_attention
from lullm.config.family.layer_norm.families import DROPOUTS, whole_heads
from lullm.config.field import MOST_HEADS, MOST_INTERMEDIATE, Data, optional_object, positive_float, positive_int, shown
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import FullAttention, KVHeads
from lullm.units import round_up

_ADDED, _WHOLE = 2, 16
"""Elements after a key that hold its position; sizes of heads are multiples of `_WHOLE` for fast kernels."""
_TRAINED = 2048
"""Training length of BLOOM and MPT."""
_MOST_POSITIONS = 1 << 16
"""Positions that two numbers of bfloat16 hold exactly."""


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """The slope of each head: powers of 2**(-8 / n). For numbers of heads that are no powers of two, every second one
    of the next n follows.
    """
    power = 1 << (num_heads.bit_length() - 1)

    def of(count: int) -> list[float]:
        return [2.0 ** (-8 * (head + 1) / count) for head in range(count)]

    return (*of(power), *of(2 * power)[::2][: num_heads - power])


def with_places(data: Data) -> Kinds:
    """Full attention over heads that are wide enough in the cache for positions. Raises ModelLoadError."""
    num_heads = positive_int(data, "num_attention_heads", most=MOST_HEADS)
    if positive_int(data, "max_position_embeddings", _TRAINED) > _MOST_POSITIONS:
        raise ModelLoadError(f"config.json: more than {_MOST_POSITIONS} positions are not supported with alibi")
    num_kv_heads = positive_int(data, "num_key_value_heads", num_heads, MOST_HEADS)
    cached = round_up(positive_int(data, "hidden_size") // num_heads + _ADDED, _WHOLE)
    return (FullAttention(KVHeads(num_kv_heads, cached)),) * len(full_attention(data))


def _derive(data: Data) -> Data:
    """A length, which the file may lack: no table depends on it."""
    return {**whole_heads(data), "max_position_embeddings": data.get("max_position_embeddings") or _TRAINED}


def _read_bloom(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    size, num_heads = positive_int(data, "hidden_size"), positive_int(data, "num_attention_heads", most=MOST_HEADS)
    if 4 * size > MOST_INTERMEDIATE:
        raise ModelLoadError(f"config.json: hidden_size must be at most {MOST_INTERMEDIATE // 4}")
    return DecoderConfig(
        intermediate_size=4 * size,
        rms_norm_eps=positive_float(data, "rms_norm_eps", 1e-5),
        ropes=(None,) * len(kinds),
        attention_scale=head_dim**-0.5,
        alibi_slopes=alibi_slopes(num_heads),
        activation="gelu_tanh",
        attention_bias=True,
        mlp_bias=True,
    )


_MPT_ATTENTION = {
    "alibi": True, "alibi_bias_max": 8, "attn_type": "multihead_attention", "clip_qkv": None, "prefix_lm": False,
    "qk_ln": False, "softmax_scale": None, "attn_uses_sequence_id": False,
}  # fmt: skip
"""Keys of `attn_config`; its other keys choose a method of computation."""


def _read_mpt(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    stated = optional_object(data, "attn_config") or {}
    wrong = [name for name, value in _MPT_ATTENTION.items() if stated.get(name, value) not in (value, None)]
    if wrong:
        named = ", ".join(f"{name} {shown(stated[name])}" for name in wrong)
        raise ModelLoadError(
            f"config.json: attn_config: {named}: not implemented for MptForCausalLM, and it changes what the model "
            "computes; take a checkpoint without it"
        )
    return replace(_read_bloom(data, kinds, head_dim), activation="gelu", attention_bias=False, mlp_bias=False)


def with_slopes(config: DecoderConfig, num_heads: int, factor: float) -> DecoderConfig:
    """For a family that may have biases in place of a rotation; `factor`: on all slopes."""
    slopes = tuple(factor * slope for slope in alibi_slopes(num_heads))
    return replace(config, ropes=(None,) * len(config.ropes), alibi_slopes=slopes)


BLOOM = Family(
    _read_bloom,
    aliases={
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_embed": "hidden_size",
        "layer_norm_epsilon": "rms_norm_eps",
        "seq_length": "max_position_embeddings",
    },
    defaults={"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    fixed=NO_WINDOW | {"apply_residual_connection_post_layernorm": False, "slow_but_exact": False},
    # The inner size is 4 times the hidden one; the others are older codes' own.
    ignores=UNUSED_WINDOW
    | DROPOUTS
    | {
        "num_key_value_heads", "intermediate_size", "hidden_act", "n_inner", "attention_softmax_in_fp32",
        "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi", "skip_bias_add", "skip_bias_add_qkv",
        "unk_token_id", "rope_theta", "rope_scaling", "rope_parameters",
    },
    layer_kinds=with_places,
    derive=_derive,
)  # fmt: skip
MPT = Family(
    _read_mpt,
    aliases={
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "d_model": "hidden_size",
        "layer_norm_epsilon": "rms_norm_eps",
        "max_seq_len": "max_position_embeddings",
    },
    defaults={"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    reads={"attn_config"},
    fixed=NO_WINDOW | {"expansion_ratio": 4, "no_bias": True, "logit_scale": None},
    ignores=UNUSED_WINDOW
    | DROPOUTS
    | {
        "num_key_value_heads", "intermediate_size", "hidden_act", "emb_pdrop", "embedding_fraction", "init_device",
        "learned_pos_emb", "norm_type", "tokenizer_name", "verbose", "rope_theta", "rope_scaling", "rope_parameters",
        "init_config", "fc_type", "ffn_config",
    },
    layer_kinds=with_places,
    derive=_derive,
)  # fmt: skip
