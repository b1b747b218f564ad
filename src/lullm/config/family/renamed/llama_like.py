"""Llama's arithmetic under other names: InternLM 1 and 2 (https://arxiv.org/abs/2403.17297), EXAONE 3 and 3.5
(https://arxiv.org/abs/2412.04862), XVERSE, Aquila 2, MiMo (https://arxiv.org/abs/2505.07608); with other norms Orion
(https://arxiv.org/abs/2401.12246); with factors MiniCPM 1, 2 and 4 (https://arxiv.org/abs/2404.06395).
"""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import DENSE_READS, LLAMA, QWEN2, read_dense
from lullm.config.family.family import NO_WINDOW, Family
from lullm.config.family.granite import with_minicpm_factors
from lullm.config.family.layer_kinds import Kinds
from lullm.config.field import MOST_HIDDEN, Data, boolean, optional_object, positive_float, positive_int, shown
from lullm.errors import ModelLoadError


def _with_bias(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """`bias`: of all matrices of attention."""
    return replace(read_dense(data, kinds, head_dim), attention_bias=boolean(data, "bias", True))


_ROTARY = {"base", "type", "scaling_factor"}


def _with_rotary(data: Data) -> Data:
    """InternLM's own keys of the rotation. Raises ModelLoadError: another type, or another key."""
    stated = optional_object(data, "rotary")
    if not stated:
        return data
    kind = stated.get("type", "origin")
    if kind not in ("origin", "dynamic") or not stated.keys() <= _ROTARY:
        raise ModelLoadError(
            f"config.json: rotary {shown(stated)} is not supported, only base, scaling_factor, and type 'origin' or "
            "'dynamic'"
        )
    data = {**data, "rope_theta": positive_float(stated, "base", 1e4)}
    if kind == "dynamic":
        factor = positive_float(stated, "scaling_factor", 1.0)
        data["rope_scaling"] = {"rope_type": "dynamic", "factor": factor}
    return data


def _four_times(data: Data) -> Data:
    """EXAONE's inner size, if the file has none."""
    is_missing = data.get("intermediate_size") is None
    return (
        {**data, "intermediate_size": 4 * positive_int(data, "hidden_size", most=MOST_HIDDEN)} if is_missing else data
    )


def _read_minicpm(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    return with_minicpm_factors(read_dense(data, kinds, head_dim), data)


_NO_BIASES = NO_WINDOW | {"attention_bias": False, "mlp_bias": False}

INTERNLM2 = Family(_with_bias, defaults={"bias": True}, reads=DENSE_READS)
INTERNLM = Family(_with_bias, defaults={"bias": True}, reads=DENSE_READS | {"rotary"}, derive=_with_rotary)
EXAONE = Family(
    read_dense,
    aliases={
        "num_layers": "num_hidden_layers",
        "layer_norm_epsilon": "rms_norm_eps",
        "activation_function": "hidden_act",
    },
    defaults={"layer_norm_epsilon": 1e-6, "tie_word_embeddings": True},
    reads=DENSE_READS,
    fixed=_NO_BIASES,
    ignores=frozenset({"embed_dropout", "resid_dropout"}),
    derive=_four_times,
)
XVERSE = replace(LLAMA, ignores=LLAMA.ignores | {"max_tokenizer_truncation"})
MIMO = replace(
    QWEN2,
    fixed={**QWEN2.fixed, "attention_bias": True},
    ignores=QWEN2.ignores | {"num_nextn_predict_layers"},
)
ORION = Family(read_dense, defaults={"rms_norm_eps": 1e-5}, reads=DENSE_READS, fixed=_NO_BIASES)
"""With norms by mean and variance, whose eps has the name of the others'."""
MINICPM = Family(
    _read_minicpm,
    defaults={"tie_word_embeddings": True, "scale_emb": 1, "scale_depth": 1, "dim_model_base": 1},
    reads=DENSE_READS | {"attention_bias"},
    fixed=NO_WINDOW | {"mlp_bias": False, "sparse_config": None},
    ignores=frozenset({"mup_denominator"}),  # of heads that draft tokens
)
"""Attention is dense at any length. `sparse_config` (MiniCPM4.1) says where it need not be; without it, it is."""
