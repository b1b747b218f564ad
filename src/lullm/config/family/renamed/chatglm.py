"""ChatGLM2, ChatGLM3 and GLM-4-9B as first released (https://arxiv.org/abs/2406.12793): GLM's arithmetic."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import DENSE_READS, read_partial
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds
from lullm.config.field import Data, boolean, positive_float

_THETA = 1e4


def _derive(data: Data) -> Data:
    """The vocabulary is padded; without groups each head has its own keys."""
    groups = data.get("num_key_value_heads") if boolean(data, "multi_query_attention", False) else None
    return {
        **data,
        "vocab_size": data.get("padded_vocab_size") or data.get("vocab_size"),
        "num_key_value_heads": groups,
        "rope_theta": data.get("rope_theta") or _THETA * positive_float(data, "rope_ratio", 1.0),
    }


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    return replace(
        read_partial(data, kinds, head_dim, default=0.5),
        attention_bias=boolean(data, "add_qkv_bias", False),
        output_bias=False,
    )


CHATGLM = Family(
    _read,
    aliases={
        "num_layers": "num_hidden_layers",
        "ffn_hidden_size": "intermediate_size",
        "kv_channels": "head_dim",
        "layernorm_epsilon": "rms_norm_eps",
        "seq_length": "max_position_embeddings",
        "multi_query_group_num": "num_key_value_heads",
    },
    defaults={
        "layernorm_epsilon": 1e-5, "multi_query_group_num": 1, "multi_query_attention": False, "add_qkv_bias": False,
        "padded_vocab_size": None, "kv_channels": 128, "seq_length": 2048, "rope_ratio": 1.0,
    },
    reads=DENSE_READS,
    fixed={
        "add_bias_linear": False, "rmsnorm": True, "apply_residual_connection_post_layernorm": False,
        "post_layer_norm": True, "original_rope": True, "pre_seq_len": None, "prefix_projection": False,
        "quantization_bit": 0, "position_encoding_2d": False, "vision_config": None,
    },
    ignores=frozenset({
        "apply_query_key_layer_scaling", "attention_softmax_in_fp32", "bias_dropout_fusion", "classifier_dropout",
        "fp32_residual_connection", "hidden_dropout",
    }),
    derive=_derive,
)  # fmt: skip
"""Keys of the first ChatGLM (`position_encoding_2d`), and of one that sees (`vision_config`), are refused."""
