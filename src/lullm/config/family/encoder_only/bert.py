"""BERT, RoBERTa, DistilBERT, ELECTRA, ALBERT and MPNet: learned positions, norms behind the sums; NomicBERT and GTE:
the same with ropes and gates.
"""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig, EncoderOnlyConfig
from lullm.config.family.dense import activation
from lullm.config.family.family import Family
from lullm.config.family.gpt import GPT2_IGNORES
from lullm.config.family.layer_kinds import Kinds, num_layers
from lullm.config.field import MOST_HIDDEN, MOST_INTERMEDIATE, Data, boolean, integer, positive_float, positive_int
from lullm.config.rope import MOST_POSITIONS, ROPE_KEYS, read_flat_rope
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import EncoderOnlyAttention

_MOST_SEGMENTS = 1 << 16


def every_token(data: Data) -> Kinds:
    """Layers without windows."""
    return (EncoderOnlyAttention(),) * num_layers(data)


def check_encoder(data: Data) -> None:
    """Raises ModelLoadError: the file describes a decoder."""
    if boolean(data, "is_decoder", False):
        raise ModelLoadError("config.json: is_decoder is true, and this architecture is implemented as an encoder only")


def read_plain(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """What the families with norms behind the sums share."""
    check_encoder(data)
    return DecoderConfig(
        intermediate_size=positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE),
        rms_norm_eps=positive_float(data, "layer_norm_eps", 1e-12),
        ropes=(None,) * len(kinds),
        attention_scale=head_dim**-0.5,
        activation=activation(data, "hidden_act"),
        attention_bias=True,
        mlp_bias=True,
        norms_first=False,
    )


def _num_segments(data: Data) -> int:
    """0 if the file says so, without a table."""
    return 0 if data.get("type_vocab_size") == 0 else positive_int(data, "type_vocab_size", 2, _MOST_SEGMENTS)


def _read_bert(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    num_positions, num_segments = positive_int(data, "max_position_embeddings"), _num_segments(data)
    encoder = EncoderOnlyConfig(num_positions, 0, num_segments, tells_pairs=num_segments > 1)
    return replace(read_plain(data, kinds, head_dim), encoder_only=encoder)


def _first_position(data: Data) -> int:
    """Rows up to the padding's have no token."""
    return integer(data, "pad_token_id", 1) + 1


def _without_unused(data: Data) -> Data:
    """Positions of tokens, in place of rows of the table. Raises ModelLoadError."""
    rows = positive_int(data, "max_position_embeddings", most=MOST_POSITIONS)
    first = _first_position(data)
    if not 0 <= first < rows:
        raise ModelLoadError(f"config.json: of {rows} positions the first is {first}, after pad_token_id")
    return {**data, "max_position_embeddings": rows - first}


def _read_roberta(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    first = _first_position(data)
    num_rows = positive_int(data, "max_position_embeddings") + first
    encoder = EncoderOnlyConfig(num_rows, first, _num_segments(data))
    return replace(read_plain(data, kinds, head_dim), encoder_only=encoder)


def _read_distilbert(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    num_positions = positive_int(data, "max_position_embeddings")
    encoder = EncoderOnlyConfig(num_positions, label_activation="relu")
    return replace(read_plain(data, kinds, head_dim), encoder_only=encoder)


def _read_electra(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    config, size = _read_bert(data, kinds, head_dim), positive_int(data, "embedding_size", most=MOST_HIDDEN)
    assert config.encoder_only is not None, "just read"
    encoder = replace(config.encoder_only, label_activation="gelu")
    return replace(config, embedding_size=None if size == data["hidden_size"] else size, encoder_only=encoder)


def _read_albert(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    config, num_groups = _read_electra(data, kinds, head_dim), positive_int(data, "num_hidden_groups", 1)
    if config.embedding_size is None:  # the projection is there, too, and its bias adds to what the norm gives
        raise ModelLoadError("config.json: embedding_size is hidden_size, and only another size is supported")
    if num_groups > len(kinds):
        raise ModelLoadError(f"config.json: num_hidden_groups {num_groups} is more than num_hidden_layers {len(kinds)}")
    assert config.encoder_only is not None, "just read"
    encoder = replace(config.encoder_only, label_activation="tanh", num_groups=num_groups)
    return replace(config, encoder_only=encoder)


def _read_mpnet(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    config = _read_roberta({**data, "type_vocab_size": 0}, kinds, head_dim)
    assert config.encoder_only is not None, "just read"
    num_buckets = positive_int(data, "relative_attention_num_buckets", 32, _MOST_SEGMENTS)
    if num_buckets != 32:  # transformers makes the table by the key, and reads it as if it had 32 rows
        raise ModelLoadError(f"config.json: relative_attention_num_buckets is {num_buckets}, and only 32 is supported")
    return replace(config, encoder_only=replace(config.encoder_only, num_buckets=num_buckets))


def _within_training(data: Data) -> Data:
    """The first checkpoints name positions that only another rope reaches."""
    positions = positive_int(data, "max_position_embeddings", most=MOST_POSITIONS)
    return {**data, "max_position_embeddings": min(positions, positive_int(data, "max_trained_positions", positions))}


def _read_rotating(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """A table of one segment adds the same to all tokens."""
    num_segments = _num_segments(data)
    return replace(
        read_plain(data, kinds, head_dim),
        ropes=(read_flat_rope(data),) * len(kinds),
        encoder_only=EncoderOnlyConfig(0, 0, num_segments, tells_pairs=num_segments > 1),
    )


_READS = {"intermediate_size", "hidden_act", "layer_norm_eps", "type_vocab_size", "is_decoder"}
_IGNORES = {"classifier_dropout", "rms_norm_eps", "sliding_window", "max_window_layers", "directionality"}
_POOLER = {
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
}
"""Keys of Google's files for a pooler that no code has."""
_DEFAULTS = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "intermediate_size": 3072, "type_vocab_size": 2}

BERT = Family(
    _read_bert,
    defaults={**_DEFAULTS, "max_position_embeddings": 512},
    reads=_READS,
    fixed={"position_embedding_type": "absolute"},
    ignores=_IGNORES | _POOLER | {"output_past"},
    layer_kinds=every_token,
)
ROBERTA = Family(
    _read_roberta,
    defaults={**_DEFAULTS, "max_position_embeddings": 512, "pad_token_id": 1},
    reads=_READS | {"pad_token_id"},
    fixed={"position_embedding_type": "absolute"},
    ignores=_IGNORES | {"output_past"},
    layer_kinds=every_token,
    derive=_without_unused,
)
DISTILBERT = Family(
    _read_distilbert,
    aliases={
        "dim": "hidden_size", "hidden_dim": "intermediate_size", "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers", "activation": "hidden_act",
    },
    defaults={
        "activation": "gelu", "hidden_dim": 3072, "max_position_embeddings": 512, "dim": 768, "n_heads": 12,
        "n_layers": 6, "layer_norm_eps": 1e-12,
    },
    reads=_READS,
    # `sinusoidal_pos_embds`: how the table was made before the training
    ignores=_IGNORES | {
        "sinusoidal_pos_embds", "dropout", "qa_dropout", "seq_classif_dropout", "output_past", "tie_weights_",
    },
    layer_kinds=every_token,
)  # fmt: skip
ELECTRA = Family(
    _read_electra,
    defaults={
        **_DEFAULTS, "intermediate_size": 1024, "max_position_embeddings": 512, "embedding_size": 128,
    },
    reads=_READS | {"embedding_size"},
    fixed={"position_embedding_type": "absolute"},
    ignores=_IGNORES
    | {
        "summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout", "generator_size",
        "output_past",
    },
    layer_kinds=every_token,
)  # fmt: skip
ALBERT = Family(
    _read_albert,
    defaults={
        **_DEFAULTS, "hidden_act": "gelu_new", "intermediate_size": 16384, "max_position_embeddings": 512,
        "embedding_size": 128, "num_hidden_groups": 1, "hidden_size": 4096, "num_hidden_layers": 12,
        "num_attention_heads": 64, "vocab_size": 30000,
    },
    reads=_READS | {"embedding_size", "num_hidden_groups"},
    fixed={"position_embedding_type": "absolute", "inner_group_num": 1},
    ignores=_IGNORES
    | {"classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"},
    layer_kinds=every_token,
)  # fmt: skip
MPNET = Family(
    _read_mpnet,
    defaults={
        **{key: value for key, value in _DEFAULTS.items() if key != "type_vocab_size"}, "max_position_embeddings": 512,
        "pad_token_id": 1, "relative_attention_num_buckets": 32,
    },
    reads=_READS - {"type_vocab_size"} | {"pad_token_id"},
    ignores=_IGNORES | {"type_vocab_size", "gradient_checkpointing"},
    layer_kinds=every_token,
    derive=_without_unused,
)  # fmt: skip
NOMIC_BERT = Family(
    _read_rotating,
    # the older names are those of the code that came with the first checkpoints
    aliases={
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings", "n_inner": "intermediate_size", "rotary_emb_base": "rope_theta",
        "layer_norm_epsilon": "layer_norm_eps",
    },
    defaults={**_DEFAULTS, "hidden_act": "silu", "max_position_embeddings": 2048, "rope_theta": 1000.0},
    reads=_READS | ROPE_KEYS | {"max_trained_positions"},
    fixed={
        "activation_function": "swiglu", "prenorm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False,
        "mlp_fc2_bias": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
        "rotary_scaling_factor": None, "rotary_emb_scale_base": None, "causal": False, "use_rms_norm": False,
        "parallel_block": False, "parallel_block_tied_norm": False, "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
    ignores=_IGNORES | GPT2_IGNORES
    - {"head_dim", "hidden_act", "intermediate_size"}
    | {
        "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "last_layer_subset", "pad_vocab_size_multiple",
        "use_flash_attn", "use_xentropy", "mlp_checkpoint_lvl", "_name_or_path",
    },
    derive=_within_training,
    layer_kinds=every_token,
    always={"attention_bias": False, "mlp_bias": False},
)  # fmt: skip
GTE = Family(
    _read_rotating,
    defaults={**_DEFAULTS, "max_position_embeddings": 8192, "rope_theta": 160000.0, "type_vocab_size": 1},
    reads=_READS | ROPE_KEYS,
    # of the code that came with the first checkpoints, and with Snowflake's
    fixed={
        "position_embedding_type": "rope", "layer_norm_type": "layer_norm", "pack_qkv": True,
        "logn_attention_scale": False, "logn_attention_clip1": False,
    },
    ignores=_IGNORES | {"unpad_inputs", "use_memory_efficient_attention"},
    layer_kinds=every_token,
    always={"attention_bias": True, "mlp_bias": False},
)  # fmt: skip
GTE_NEW = replace(GTE, defaults={**GTE.defaults, "max_position_embeddings": 2048, "rope_theta": 10000.0})
"""The same under the first name of its code."""
