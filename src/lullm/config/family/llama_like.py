"""Dense families near Llama: Phi-3, 4, SmolLM3, OLMo 2, 3, Granite, Ministral, Seed-OSS, GLM-4, EXAONE 4, ERNIE 4.5."""

from dataclasses import replace
from functools import partial

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import (
    DENSE_READS,
    LLAMA,
    keeps_length,
    read_dense,
    read_partial,
    ropes_of,
    ropes_where,
    with_rope,
    without_stretch,
)
from lullm.config.family.experts.reading import TRAINING, behind_dense, read_grouped_experts, with_experts
from lullm.config.family.family import NO_WINDOW, Family
from lullm.config.family.layer_kinds import (
    Kinds,
    full_attention,
    layers_that_turn,
    window_but_every,
    window_unless_null,
    window_where_named,
    window_without_rope,
)
from lullm.config.field import MOST_LAYERS, Data, boolean, optional_object, optional_positive_float, positive_int, shown
from lullm.config.rope import read_flat_rope, read_ropes_by_kind, read_theta
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import SlidingWindow


def _read_phi3(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """`su` and `yarn` are older names of `longrope` here."""
    names = ("rope_scaling", "rope_parameters")
    data = {**data, **{name: _renamed(data[name], data) for name in names if optional_object(data, name)}}
    rope = read_flat_rope(data, has_partial=True)
    return replace(_without_rope(data, kinds, head_dim), ropes=(rope,) * len(kinds))


def _renamed(parameters: Data, data: Data) -> Data:
    stated = parameters.get("rope_type") or parameters.get("type")
    rope_type = "longrope" if stated in ("su", "yarn") else stated
    # The file's own value has priority over that of the parameters.
    name = "original_max_position_embeddings"
    return {**parameters, "rope_type": rope_type, name: data[name]}


def _without_rope(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """As `read_dense`, for a family with its own reading of ropes."""
    plain = {key: value for key, value in data.items() if key not in ("rope_scaling", "rope_parameters")}
    return read_dense({**plain, "partial_rotary_factor": None}, kinds, head_dim)


def _read_smollm3(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    config = read_dense(data, kinds, head_dim)
    return replace(config, ropes=ropes_where(layers_that_turn(data), config))


_OLMO3_THETA = 5e5


def _read_olmo3(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    # transformers uses `rope_theta` only for layers with full attention.
    full, local = read_ropes_by_kind(data, read_theta(data, "rope_theta", _OLMO3_THETA), _OLMO3_THETA)
    return replace(_without_rope(data, kinds, head_dim), ropes=ropes_of(kinds, full, local))


def _read_ministral3(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    data, stretch = without_stretch(data, theta=1e6, factor=16.0, trained_len=16384)
    return replace(read_dense(data, kinds, head_dim), query_stretch=stretch)


def _read_seed_oss(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    return replace(read_dense(data, kinds, head_dim), output_bias=boolean(data, "attention_out_bias", False))


def _read_ernie4_5(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    bias = boolean(data, "use_bias", False)
    return replace(read_dense(data, kinds, head_dim), attention_bias=bias, mlp_bias=bias)


def _exaone4_kinds(data: Data) -> Kinds:
    if data.get("sliding_window") is None:
        return full_attention(data)
    # `layer_types` has priority over a pattern in letters.
    interval = 4 if data.get("layer_types") else positive_int(data, "sliding_window_pattern", 4, MOST_LAYERS)
    return window_but_every(data, interval)


def _read_exaone4(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """If some layers have a window, the others do not rotate their heads."""
    config = read_dense(data, kinds, head_dim)
    if data.get("sliding_window") is None:
        return config
    return replace(config, ropes=ropes_where([isinstance(kind, SlidingWindow) for kind in kinds], config))


_LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_theta": 1e6,
}  # fmt: skip
"""CWM's where a file has none; Apertus' is near it."""


def _read_cwm(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    return read_dense(with_rope(data, _LLAMA3_ROPE), kinds, head_dim)


def _read_apertus(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    if data.get("hidden_act") != "xielu":
        raise ModelLoadError(f"config.json: hidden_act {shown(data.get('hidden_act'))} is not supported, only xielu")
    data = with_rope({**data, "hidden_act": None}, _LLAMA3_ROPE | {"factor": 8.0, "rope_theta": 12e6})
    return read_dense(data | {"hidden_act": "silu"}, kinds, head_dim)  # every layer's is `nn.mlp.Xielu`


def _read_nanochat(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    config = read_dense(data, kinds, head_dim)
    keeps_length(config)
    return replace(config, final_soft_cap=optional_positive_float(data, "final_logit_softcapping"))


INTERNLM3 = replace(
    LLAMA,
    aliases={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
    defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 128},
)
IQUEST_CODER = replace(
    LLAMA,
    defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128},
    fixed=NO_WINDOW | {"clip_qkv": None},
)
PHI3 = Family(
    _read_phi3,
    defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    reads=DENSE_READS | {"partial_rotary_factor", "sliding_window"},
    fixed={"lm_head_bias": False},
    ignores={"resid_pdrop", "embd_pdrop", "full_attn_mod", "interpolate_factor"},
    layer_kinds=window_unless_null,
)
SMOLLM3 = Family(
    _read_smollm3,
    defaults={"tie_word_embeddings": True, "rope_theta": 2e6},
    reads=DENSE_READS
    | {
        "attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval", "use_sliding_window",
        "sliding_window",
    },
    ignores={"max_window_layers"},
    layer_kinds=window_without_rope,
)  # fmt: skip
OLMO2 = Family(read_dense, defaults={"rms_norm_eps": 1e-5}, reads=DENSE_READS | {"attention_bias"})
OLMO3 = Family(
    _read_olmo3,
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
    reads=DENSE_READS | {"attention_bias"},
    layer_kinds=partial(window_but_every, interval=4),
)
MINISTRAL = Family(
    read_dense,
    defaults={"sliding_window": 4096},
    reads=DENSE_READS | {"sliding_window"},
    layer_kinds=window_where_named,
)
MINISTRAL3 = Family(
    _read_ministral3,
    defaults={"rms_norm_eps": 1e-5, "head_dim": 128},
    reads=DENSE_READS | {"sliding_window"},
    layer_kinds=window_unless_null,
)
SEED_OSS = Family(
    _read_seed_oss,
    defaults={"head_dim": 128, "attention_bias": True},
    reads=DENSE_READS | {"attention_bias", "attention_out_bias", "mlp_bias"},
    ignores={"residual_dropout"},
)
GLM4 = Family(
    partial(read_partial, default=0.5),
    defaults={"rms_norm_eps": 1.5625e-7, "head_dim": 128, "attention_bias": True},
    reads=DENSE_READS | {"attention_bias", "partial_rotary_factor"},
    ignores={"num_nextn_predict_layers"},
    always={"output_bias": False},
)
ERNIE4_5 = Family(
    _read_ernie4_5,
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True, "head_dim": 128},
    reads=DENSE_READS | {"use_bias"},
)
ARCEE = Family(
    read_dense,
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu2"},
    reads=DENSE_READS | {"attention_bias", "mlp_bias"},
)
HELIUM = Family(
    read_dense,
    defaults={"rms_norm_eps": 1e-8, "rope_theta": 100000.0, "num_key_value_heads": 20, "head_dim": 128},
    reads=DENSE_READS | {"attention_bias", "mlp_bias"},
    always={"output_bias": False},
)
EXAONE4 = Family(
    _read_exaone4,
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
    reads=DENSE_READS | {"sliding_window", "sliding_window_pattern"},
    layer_kinds=_exaone4_kinds,
)
EXAONE_MOE = Family(
    with_experts(_read_exaone4, lambda data: read_grouped_experts(data, behind_dense(data, 1))),
    defaults={
        "rms_norm_eps": 1e-5, "sliding_window": 4096, "num_experts": 64, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1024, "routed_scaling_factor": 2.5, "num_key_value_heads": 32,
    },
    aliases={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
    reads=EXAONE4.reads
    | {"mlp_layer_types", "first_k_dense_replace", "norm_topk_prob", "n_group", "topk_group"},
    ignores=TRAINING | {"num_nextn_predict_layers", "mtp_loss_scaling_factor"},
    layer_kinds=_exaone4_kinds,
    always={"qk_norm": "heads", "has_drafts": True},
)  # fmt: skip
CWM = Family(
    _read_cwm,
    defaults={
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": 8192,
        "rope_theta": 1e6,
    },
    reads=DENSE_READS | {"mlp_bias"},
    fixed={"attention_bias": False},
    layer_kinds=partial(window_but_every, interval=4, is_first=True),
)
APERTUS = Family(
    _read_apertus,
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "xielu", "rope_theta": 12e6},
    reads=DENSE_READS | {"attention_bias"},
)
NANOCHAT = Family(
    _read_nanochat,
    defaults={"hidden_act": "relu2", "final_logit_softcapping": 15.0},
    reads=DENSE_READS | {"attention_bias"},
)
