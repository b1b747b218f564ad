"""Families with norms by mean and variance: CodeGen, GPT-J, GPT-NeoX, Nemotron, OLMo, Phi and others.

Most have their own name for the norms' eps, and attention and MLP in parallel, or a switch for it.
"""

from dataclasses import replace
from functools import partial

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import activation, read_dense, read_partial, rotated_share
from lullm.config.family.family import Family
from lullm.config.family.gpt import GPT2_IGNORES
from lullm.config.family.layer_kinds import Kinds, window_unless_null
from lullm.config.field import MOST_HEADS, Data, boolean, positive_int, shown
from lullm.config.rope import ROPE_KEYS
from lullm.errors import ModelLoadError

CODEGEN_PARTS = 4
"""Parts of CodeGen's queries, values and keys, one per processor that trained it."""
_OLMO_EPS = 1e-5
"""OLMo's files lack it."""


def _read_gptj(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    share = rotated_share(data, head_dim)
    data = {**data, "intermediate_size": data.get("n_inner") or 4 * positive_int(data, "hidden_size")}
    return replace(
        read_partial(data, kinds, head_dim, default=share),
        activation=activation(data, "activation_function"),
        mlp_bias=True,
        has_parallel_mlp=True,
    )


def _read_codegen(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """As GPT-J, whose heads it holds in four parts."""
    num_heads = positive_int(data, "num_attention_heads", most=MOST_HEADS)
    if num_heads % CODEGEN_PARTS:
        raise ModelLoadError(f"config.json: n_head ({num_heads}) must be a multiple of {CODEGEN_PARTS}")
    return _read_gptj(data, kinds, head_dim)


def _older_rope(data: Data) -> Data:
    """NeoX's own names of the rotation's keys."""
    data = whole_heads(data)
    theta, share = data.get("rotary_emb_base"), data.get("rotary_pct")
    return {**data, "rope_theta": theta, "partial_rotary_factor": 0.25 if share is None else share}


def whole_heads(data: Data) -> Data:
    """Raises ModelLoadError: heads have another size than their part of a row; transformers rotates a part of it."""
    size = data.get("head_dim")
    if size is not None:
        own = positive_int(data, "hidden_size") // positive_int(data, "num_attention_heads", most=MOST_HEADS)
        if size != own:
            raise ModelLoadError(
                f"config.json: head_dim {shown(size)} is not hidden_size / num_attention_heads ({own}), which is what "
                "this architecture has"
            )
    return data


def _read_gpt_neox(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    return replace(
        read_partial(data, kinds, head_dim, default=0.25),
        attention_bias=boolean(data, "attention_bias", True),
        mlp_bias=True,
        has_parallel_mlp=boolean(data, "use_parallel_residual", True),
    )


def _read_olmo(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    return replace(read_dense(data, kinds, head_dim), rms_norm_eps=_OLMO_EPS)


def _read_stablelm(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    return replace(
        read_partial(data, kinds, head_dim, default=0.25),
        attention_bias=boolean(data, "use_qkv_bias", False),
        has_parallel_mlp=boolean(data, "use_parallel_residual", False),
    )


def _read_starcoder2(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    bias = boolean(data, "use_bias", True)
    return replace(read_dense(data, kinds, head_dim), attention_bias=bias, mlp_bias=bias)


READS = ROPE_KEYS | {"intermediate_size", "hidden_act"}
EPS = {"layer_norm_eps": "rms_norm_eps"}
DROPOUTS = {"residual_dropout", "embedding_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"}

GPTJ = Family(
    _read_gptj,
    aliases={
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings",
        "layer_norm_epsilon": "rms_norm_eps",
    },
    defaults={"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "rotary_dim": 64},
    reads={"n_inner"},
    fixed={"scale_attn_weights": True, "rotary": True},
    ignores=GPT2_IGNORES - {"reorder_and_upcast_attn"},
)
CODEGEN = replace(GPTJ, read=_read_codegen)
GPT_NEOX = Family(
    _read_gpt_neox,
    aliases=EPS,
    defaults={"layer_norm_eps": 1e-5, "hidden_act": "gelu", "attention_bias": True, "use_parallel_residual": True},
    reads=READS | {"rotary_pct", "rotary_emb_base"},
    ignores=DROPOUTS | {"classifier_dropout", "num_key_value_heads"},
    derive=_older_rope,
)
NEMOTRON = Family(
    partial(read_partial, default=0.5),
    aliases={"norm_eps": "rms_norm_eps"},
    defaults={"norm_eps": 1e-5, "hidden_act": "relu2"},
    reads=READS | {"attention_bias", "mlp_bias", "partial_rotary_factor"},
    ignores=DROPOUTS,
)
JAIS2 = Family(
    read_dense,
    aliases=EPS,
    defaults={"layer_norm_eps": 1e-5, "hidden_act": "relu2", "attention_bias": True, "mlp_bias": True},
    reads=READS | {"attention_bias", "mlp_bias"},
    ignores=DROPOUTS,
)
OLMO = Family(_read_olmo, reads=READS | {"attention_bias"}, fixed={"clip_qkv": None})
PHI = Family(
    partial(read_partial, default=0.5),
    aliases=EPS,
    defaults={"layer_norm_eps": 1e-5, "hidden_act": "gelu_new"},
    reads=READS | {"partial_rotary_factor"},
    fixed={"qk_layernorm": False},
    ignores=DROPOUTS,
    always={"attention_bias": True, "mlp_bias": True, "has_parallel_mlp": True},
)
STABLELM = Family(
    _read_stablelm,
    aliases=EPS,
    defaults={"layer_norm_eps": 1e-5, "num_key_value_heads": 32},
    reads=READS | {"partial_rotary_factor", "use_qkv_bias", "use_parallel_residual"},
    fixed={"qk_layernorm": False},
    ignores=DROPOUTS | {"rope_pct", "norm_eps"},  # older names beside those that count
    derive=whole_heads,
    always={"output_bias": False},
)
STARCODER2 = Family(
    _read_starcoder2,
    aliases={"norm_epsilon": "rms_norm_eps"},
    defaults={
        "norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh", "use_bias": True, "tie_word_embeddings": True,
        "num_key_value_heads": 2,
    },
    reads=READS | {"sliding_window"},
    fixed={"scale_attn_weights": True},
    # `norm_epsilon` and `hidden_act` count; the released files have their older names, too.
    ignores=DROPOUTS
    | {
        "layer_norm_epsilon", "activation_function", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
        "mlp_type", "norm_type",
    },
    layer_kinds=window_unless_null,
)  # fmt: skip
