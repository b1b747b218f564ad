"""Qwen 1 (https://arxiv.org/abs/2309.16609), up to the length of its training: Qwen2's arithmetic without groups."""

from lullm.config.family.dense import DENSE_READS, read_dense
from lullm.config.family.family import Family
from lullm.config.field import MOST_INTERMEDIATE, Data, boolean, positive_int
from lullm.config.rope import MOST_POSITIONS
from lullm.errors import ModelLoadError


def _derive(data: Data) -> Data:
    """The file counts gates and ups as one size, and has no groups.

    Behind the trained length queries grow and the base frequency does, if the file says so: such positions are not
    computed, and so no sequence may be longer.
    """
    size = positive_int(data, "intermediate_size", most=2 * MOST_INTERMEDIATE)
    if size % 2:
        raise ModelLoadError(f"config.json: intermediate_size ({size}) must be even: it counts gates and ups")
    positions = positive_int(data, "max_position_embeddings", 8192, MOST_POSITIONS)
    if boolean(data, "use_dynamic_ntk", True) or boolean(data, "use_logn_attn", True):
        positions = min(positions, positive_int(data, "seq_length", positions, MOST_POSITIONS))
    return {**data, "intermediate_size": size // 2, "max_position_embeddings": positions, "num_key_value_heads": None}


QWEN = Family(
    read_dense,
    aliases={"layer_norm_epsilon": "rms_norm_eps", "rotary_emb_base": "rope_theta", "kv_channels": "head_dim"},
    defaults={
        "layer_norm_epsilon": 1e-6, "rotary_emb_base": 10000.0, "kv_channels": 128, "max_position_embeddings": 8192,
        "use_dynamic_ntk": True, "use_logn_attn": True, "seq_length": None,
    },
    reads=DENSE_READS,
    fixed={"no_bias": True, "rotary_pct": 1.0, "scale_attn_weights": True},
    ignores=frozenset({
        "attn_dropout_prob", "emb_dropout_prob", "bf16", "fp16", "fp32", "onnx_safe", "softmax_in_fp32",
        "use_cache_kernel", "use_cache_quantization", "use_flash_attn",
    }),
    derive=_derive,
    always={"attention_bias": True, "output_bias": False},
)  # fmt: skip
