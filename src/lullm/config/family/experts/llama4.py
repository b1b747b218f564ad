"""Llama 4: layers that see chunks and rotate, layers that see all and do not, and experts that read scaled rows."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig, QueryStretch
from lullm.config.family.dense import keeps_length, read_dense, ropes_where
from lullm.config.family.experts.reading import READS, TRAINING, read_experts
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import FULL, Kinds, kinds_by_type, layers_that_turn
from lullm.config.field import Data, boolean, positive_float, positive_int, shown
from lullm.config.rope import MOST_POSITIONS
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import FullAttention, LayerKind, SlidingWindow

_CHUNKED = "chunked_attention"


def _layer_kinds(data: Data) -> Kinds:
    """By `layer_types`; without them layers with rotation see chunks."""
    chunk: LayerKind = FullAttention()
    if data.get("attention_chunk_size") is not None:
        chunk = SlidingWindow(positive_int(data, "attention_chunk_size", most=MOST_POSITIONS), is_chunked=True)
    return kinds_by_type(data, {_CHUNKED: chunk}, [_CHUNKED if turns else FULL for turns in layers_that_turn(data)])


def _layers_with_experts(data: Data, count: int) -> tuple[bool, ...]:
    stated = data.get("moe_layers")
    if stated is None:
        step = positive_int(data, "interleave_moe_layer_step", 1)
        return tuple((layer + 1) % step == 0 for layer in range(count))
    if not isinstance(stated, list) or not all(isinstance(layer, int) for layer in stated):
        raise ModelLoadError(f"config.json: moe_layers must be a list of layers, not {shown(stated)}")
    return tuple(layer in stated for layer in range(count))


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    config = read_dense({**data, "intermediate_size": data.get("intermediate_size_mlp")}, kinds, head_dim)
    experts = read_experts(data, "num_local_experts", "intermediate_size", _layers_with_experts(data, len(kinds)))
    has_norms = boolean(data, "use_qk_norm", True)
    if has_norms:
        keeps_length(config)
    stretch = None
    if data.get("attn_temperature_tuning"):
        trained_len = positive_int(data, "floor_scale", 8192, MOST_POSITIONS)
        stretch = QueryStretch(positive_float(data, "attn_scale", 0.1), trained_len, ahead=1)
    return replace(
        config,
        ropes=ropes_where(layers_that_turn(data), config),
        qk_norm="bare_heads" if has_norms else None,
        query_stretch=stretch,
        experts=replace(
            experts,
            scoring="sigmoid",
            normalizes=False,
            scales_inputs=True,
            shared_intermediate_size=experts.intermediate_size,
        ),
    )


LLAMA4 = Family(
    _read,
    defaults={
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "head_dim": 128, "num_key_value_heads": 8,
        "num_local_experts": 16, "num_experts_per_tok": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "attention_chunk_size": 8192, "attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1,
        "use_qk_norm": True,
    },
    reads=READS
    | {
        "attention_bias", "moe_layers", "interleave_moe_layer_step", "no_rope_layers", "no_rope_layer_interval",
    },
    fixed={"norm_topk_prob": False},
    ignores=TRAINING | {"for_llm_compressor", "cache_implementation"},
    layer_kinds=_layer_kinds,
)  # fmt: skip
