"""DeBERTa 2 and 3: attention by content and by distance apart; norms behind the sums."""

from dataclasses import replace
from typing import Any

from lullm.config.decoder import DecoderConfig, EncoderOnlyConfig
from lullm.config.family.dense import activation
from lullm.config.family.encoder_only.bert import every_token, read_plain
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds
from lullm.config.field import Data, boolean, integer, positive_int, shown
from lullm.config.layer.disentangled import DisentangledConfig
from lullm.config.rope import MOST_POSITIONS
from lullm.errors import ModelLoadError

_MOST_WIDTH = 1 << 10
_HEAD_ACTIVATIONS = ("gelu", "tanh", "relu")
_SCORES = frozenset({"c2p", "p2c"})


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    if not boolean(data, "relative_attention", False):
        raise ModelLoadError("config.json: relative_attention is false or missing, and only true is supported")
    size = positive_int(data, "hidden_size")
    for name in ("embedding_size", "pooler_hidden_size"):
        if positive_int(data, name, size) != size:
            raise ModelLoadError(f"config.json: {name} {data[name]} is not hidden_size ({size}), and only that is read")
    attention = _read_disentangled(data)
    label_activation: Any = data.get("pooler_hidden_act", "gelu")
    if label_activation not in _HEAD_ACTIVATIONS:
        known = ", ".join(_HEAD_ACTIVATIONS)
        raise ModelLoadError(f"config.json: pooler_hidden_act {shown(label_activation)} is not supported, only {known}")
    num_segments = positive_int(data, "type_vocab_size") if data.get("type_vocab_size") else 0
    encoder = EncoderOnlyConfig(
        positive_int(data, "max_position_embeddings") if boolean(data, "position_biased_input", True) else 0,
        0,
        num_segments,
        tells_pairs=num_segments > 1,
        label_activation=label_activation,
        disentangled=attention,
    )
    scale = (head_dim * (1 + len(attention.scores))) ** -0.5
    return replace(read_plain(data, kinds, head_dim), attention_scale=scale, encoder_only=encoder)


def _read_disentangled(data: Data) -> DisentangledConfig:
    stated = integer(data, "max_relative_positions", -1)
    farthest = stated if stated > 0 else positive_int(data, "max_position_embeddings", most=MOST_POSITIONS)
    num_buckets = max(0, integer(data, "position_buckets", -1))
    num_distances, num_exact = (num_buckets, num_buckets // 2) if num_buckets else (farthest, farthest)
    if num_buckets and not 0 < num_exact < farthest - 1 <= MOST_POSITIONS:
        raise ModelLoadError(f"config.json: position_buckets {num_buckets} do not reach up to {farthest} positions")
    width = 0
    if integer(data, "conv_kernel_size", 0):
        width = positive_int(data, "conv_kernel_size", most=_MOST_WIDTH)
        if width % 2 == 0:
            raise ModelLoadError(f"config.json: conv_kernel_size must be odd, not {width}")
    return DisentangledConfig(
        num_distances,
        num_exact,
        farthest,
        _scores(data.get("pos_att_type")),
        boolean(data, "share_att_key", False),
        _norms_rows(data.get("norm_rel_ebd", "none")),
        width,
        activation({"conv_act": data.get("conv_act", "tanh")}, "conv_act") if width else "gelu",
    )


def _scores(stated: Any) -> frozenset[Any]:
    """The scores that a list names, or a text of names between bars."""
    names = [name.strip().lower() for name in stated.split("|")] if isinstance(stated, str) else stated
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not _SCORES.issuperset(names):
        raise ModelLoadError(f"config.json: pos_att_type {shown(stated)} is not a list of c2p and p2c")
    if not names:
        raise ModelLoadError("config.json: pos_att_type is empty, and a model without scores by distance is not read")
    return frozenset(names)


def _norms_rows(stated: Any) -> bool:
    if stated not in ("none", "layer_norm"):
        raise ModelLoadError(f"config.json: norm_rel_ebd must be none or layer_norm, not {shown(stated)}")
    return bool(stated == "layer_norm")


DEBERTA = Family(
    _read,
    defaults={
        "hidden_act": "gelu", "layer_norm_eps": 1e-7, "intermediate_size": 6144, "type_vocab_size": 0,
        "max_position_embeddings": 512, "hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24,
        "vocab_size": 128100, "max_relative_positions": -1, "position_biased_input": True, "pooler_hidden_act": "gelu",
        "relative_attention": False,
    },
    reads={
        "intermediate_size", "hidden_act", "layer_norm_eps", "type_vocab_size", "is_decoder", "position_buckets",
        "max_relative_positions", "position_biased_input", "pos_att_type", "share_att_key", "norm_rel_ebd",
        "conv_kernel_size", "conv_act", "embedding_size", "pooler_hidden_act", "pooler_hidden_size",
        "relative_attention",
    },
    fixed={"conv_groups": 1},
    ignores={
        "pooler_dropout", "legacy", "cls_dropout", "classifier_dropout", "rms_norm_eps", "sliding_window",
        "max_window_layers", "output_past",
    },
    layer_kinds=every_token,
)  # fmt: skip
