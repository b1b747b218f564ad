"""Baichuan 1 and 2 (https://arxiv.org/abs/2309.10305): Llama's arithmetic.

In 13B scores fall with distance in place of a rotation. In Baichuan 2 every row of the head has the length 1.
"""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import DENSE_READS, read_dense
from lullm.config.family.family import NO_WINDOW, UNUSED_WINDOW, Family
from lullm.config.family.layer_kinds import Kinds, full_attention
from lullm.config.family.layer_norm.alibi import with_places, with_slopes
from lullm.config.field import MOST_HEADS, Data, positive_int

_SMALL, _LARGE = 4096, 5120
"""Hidden sizes of 7B and 13B."""
_BAICHUAN2_VOCAB = 125_696
_POSITIONS = "max_position_embeddings"
_HAS_SLOPES = "has_alibi"


def _derive(data: Data) -> Data:
    """No key says whether there is a rotation. Only files of models that have one say `max_position_embeddings`."""
    size, positions = data.get("hidden_size"), data.get(_POSITIONS)
    has_slopes = size == _LARGE or (size != _SMALL and positions is None)
    return {**data, _POSITIONS: positions or data.get("model_max_length"), _HAS_SLOPES: has_slopes}


def _kinds(data: Data) -> Kinds:
    return with_places(data) if data[_HAS_SLOPES] else full_attention(data)


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    is_second = data.get("vocab_size") == _BAICHUAN2_VOCAB or data.get("z_loss_weight") is not None
    config = replace(read_dense(data, kinds, head_dim), norms_head=is_second)
    if not data[_HAS_SLOPES]:
        return config
    return with_slopes(config, positive_int(data, "num_attention_heads", most=MOST_HEADS), 1.0)


BAICHUAN = Family(
    _read,
    defaults={"z_loss_weight": None},  # of the second's training
    reads=DENSE_READS,
    fixed=NO_WINDOW | {"attention_bias": False, "mlp_bias": False},
    ignores=UNUSED_WINDOW,
    layer_kinds=_kinds,
    derive=_derive,
)
