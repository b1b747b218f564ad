"""RecurrentGemma: gated linear units (RG-LRU) in two of three layers, attention with a window in the others."""

import struct
from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import activation, read_partial
from lullm.config.family.family import Family
from lullm.config.family.hybrid.reading import MOST_KERNEL
from lullm.config.family.layer_kinds import LINEAR, SLIDING, Kinds, num_layers
from lullm.config.field import MOST_HEADS, MOST_HIDDEN, Data, optional_positive_float, positive_int, shown
from lullm.config.layer.recurrent import GatedUnitConfig
from lullm.config.rope import ROPE_KEYS
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import LayerKind, RecurrentState, SlidingWindow

_TRAINED_LEN = 8192
"""Its files lack it."""
_NAMES = {"recurrent": LINEAR, "attention": SLIDING}


def _with_length(data: Data) -> Data:
    return {"max_position_embeddings": _TRAINED_LEN, **data}


def _unit(data: Data) -> GatedUnitConfig:
    size = positive_int(data, "lru_width", positive_int(data, "hidden_size"), MOST_HIDDEN)
    num_heads = positive_int(data, "num_attention_heads", most=MOST_HEADS)
    if size % num_heads:
        raise ModelLoadError(f"config.json: lru_width ({size}) must be a multiple of num_attention_heads ({num_heads})")
    return GatedUnitConfig(num_heads, size // num_heads, positive_int(data, "conv1d_width", most=MOST_KERNEL))


def _kinds(data: Data) -> Kinds:
    """`block_types`, repeated."""
    pattern, count = data["block_types"], num_layers(data)
    if not isinstance(pattern, list | tuple) or not pattern or any(name not in _NAMES for name in pattern):
        raise ModelLoadError(f"config.json: block_types must be a list of {' and '.join(_NAMES)}, not {shown(pattern)}")
    types = [_NAMES[pattern[layer % len(pattern)]] for layer in range(count)]
    stated = data.get("layer_types")
    if stated is not None and stated != types:
        raise ModelLoadError(
            f"config.json: by block_types the layers are {shown(types)}, and layer_types says {shown(stated)}"
        )
    kinds: dict[str, LayerKind] = {
        LINEAR: RecurrentState(_unit(data).state_shapes), SLIDING: SlidingWindow(positive_int(data, "sliding_window"))
    }  # fmt: skip
    return tuple(kinds[name] for name in types)


def _rounded(value: float) -> float:
    """Rounded to bfloat16, like transformers' factor on embeddings, for any type of the model."""
    [bits] = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7FFF + (bits >> 16 & 1)
    [rounded] = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))
    return float(rounded)


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    size = positive_int(data, "intermediate_size")
    own = {**data, "hidden_act": data["hidden_activation"], "intermediate_size": size // 2}
    activation(data, "hidden_activation")  # under its own name
    return replace(
        read_partial(own, kinds, head_dim, default=0.5),
        mlp_bias=True,
        output_bias=True,
        embedding_scale=_rounded(positive_int(data, "hidden_size") ** 0.5),
        scales_shown=True,
        final_soft_cap=optional_positive_float(data, "logits_soft_cap"),
        recurrent=_unit(data),
    )


RECURRENT_GEMMA = Family(
    _read,
    aliases={"attention_window_size": "sliding_window", "layers_block_type": "layer_types"},
    defaults={
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "attention_window_size": 2048, "conv1d_width": 4,
        "logits_soft_cap": 30.0, "hidden_activation": "gelu_pytorch_tanh", "intermediate_size": 7680,
        "block_types": ("recurrent", "recurrent", "attention"), "lru_width": None,
    },
    reads=ROPE_KEYS | {"attention_bias", "partial_rotary_factor"},
    fixed={"embeddings_scale_by_sqrt_dim": True},
    # of first values; and an older name beside `block_types`
    ignores={"w_init_variance_scale", "final_w_init_variance_scale", "_block_types"},
    layer_kinds=_kinds,
    derive=_with_length,
)  # fmt: skip
