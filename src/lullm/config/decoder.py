"""DecoderConfig: the family part of a `config.json`, for the families that share one decoder (`models.decoder`).

These are Llama, Mistral, Qwen3 and Gemma: RMS norms, a gated MLP, rotary positions.
"""

from dataclasses import dataclass
from typing import Any

from lullm.config.field import optional_positive_float, positive_float, positive_int
from lullm.config.rope import RopeConfig, read_rope
from lullm.errors import ModelLoadError
from lullm.types.arithmetic import Activation, AttentionFeature
from lullm.types.layer_kind import FullAttention, LayerKind, SlidingWindow

_GEMMA_PATTERN = 6
"""Every so many layers one has full attention, where a Gemma 3 file names no pattern."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What the shared decoder needs beside the common part of `ModelConfig`.

    Args:
        ropes: by layer.
        activation: of the gates in the MLP.
        attention_scale: factor on the products of queries and keys.
        attention_bias: projections of queries, keys, values and output have a bias.
        mlp_bias: projections of the MLP have a bias.
        embedding_scale: factor on the rows of the embedding, rounded to the model's dtype.
        attention_soft_cap, final_soft_cap: `cap * tanh(x / cap)` of scores, and of logits; None: as they are.
    """

    intermediate_size: int
    rms_norm_eps: float
    ropes: tuple[RopeConfig, ...]
    attention_scale: float
    activation: Activation = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    embedding_scale: float = 1.0
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None

    @property
    def widest_row(self) -> int:
        """Elements of the widest row between two layers' results, for memory that is planned ahead."""
        return 2 * self.intermediate_size

    @property
    def attention_features(self) -> frozenset[AttentionFeature]:
        """What attention must be able to do beside plain scores."""
        return frozenset() if self.attention_soft_cap is None else frozenset({"soft_cap"})


def default_head_dim(data: dict[str, Any], architecture: str) -> int:
    """The head size of a file that names none."""
    if is_gemma(architecture):
        return 256
    return positive_int(data, "hidden_size") // positive_int(data, "num_attention_heads")


def is_gemma(architecture: str) -> bool:
    return architecture.startswith("Gemma")


def read_layer_kinds(data: dict[str, Any], architecture: str) -> tuple[LayerKind, ...]:
    """One kind per layer, by transformers' rules. Raises ModelLoadError.

    Mistral has a window unless it is null. Qwen has one if it is switched on. Gemma always has one. Other families
    have none, whatever the file says.
    """
    num_layers = positive_int(data, "num_hidden_layers")
    is_qwen = architecture.startswith("Qwen")
    has_window = architecture.startswith("Mistral") or is_qwen and data.get("use_sliding_window")
    if is_gemma(architecture):
        has_window = True
    if not has_window or data.get("sliding_window", 4096) is None:
        return (FullAttention(),) * num_layers
    window = SlidingWindow(positive_int(data, "sliding_window", 4096))
    layer_types = data.get("layer_types")
    if layer_types is None:
        return tuple(FullAttention() if is_full else window for is_full in _full_layers(data, architecture, num_layers))
    kinds: dict[Any, LayerKind] = {"full_attention": FullAttention(), "sliding_attention": window}
    if not isinstance(layer_types, list) or not all(str(layer_type) in kinds for layer_type in layer_types):
        raise ModelLoadError(f"config.json: layer_types must be a list of {' and '.join(kinds)}, not {layer_types!r}")
    if len(layer_types) != num_layers:
        raise ModelLoadError(
            f"config.json: layer_types names {len(layer_types)} layers, num_hidden_layers is {num_layers}"
        )
    return tuple(kinds[layer_type] for layer_type in layer_types)


def _full_layers(data: dict[str, Any], architecture: str, num_layers: int) -> list[bool]:
    """For each layer whether it has full attention, where the file has a window and no `layer_types`."""
    if is_gemma(architecture):
        pattern = positive_int(data, "sliding_window_pattern", _GEMMA_PATTERN)
        return [(layer + 1) % pattern == 0 for layer in range(num_layers)]
    num_full = data.get("max_window_layers", 28) if architecture.startswith("Qwen") else 0
    if not isinstance(num_full, int):
        raise ModelLoadError(f"config.json: max_window_layers must be an integer, not {num_full!r}")
    return [layer < num_full for layer in range(num_layers)]


def read_decoder(
    data: dict[str, Any], architecture: str, head_dim: int, layer_kinds: tuple[LayerKind, ...]
) -> DecoderConfig:
    """From a parsed `config.json`. Raises ModelLoadError: a field is missing, or makes no sense."""
    if head_dim % 2:
        raise ModelLoadError(f"config.json: head_dim must be even for rotary embeddings, got {head_dim}")
    if is_gemma(architecture):
        return _read_gemma(data, layer_kinds)
    act = data.get("hidden_act", "silu")
    if act != "silu":
        raise ModelLoadError(f"config.json: hidden_act {act!r} is not supported yet, only 'silu'")
    parameters = data.get("rope_parameters") or data.get("rope_scaling") or {}
    rope = read_rope(data, parameters, positive_float(data, "rope_theta", 10000.0))
    return DecoderConfig(
        intermediate_size=positive_int(data, "intermediate_size"),
        rms_norm_eps=positive_float(data, "rms_norm_eps", 1e-6),
        ropes=(rope,) * len(layer_kinds),
        attention_scale=head_dim**-0.5,
        attention_bias=bool(data.get("attention_bias", False)),
        mlp_bias=bool(data.get("mlp_bias", False)),
    )


def _read_gemma(data: dict[str, Any], layer_kinds: tuple[LayerKind, ...]) -> DecoderConfig:
    act = data.get("hidden_activation") or "gelu_pytorch_tanh"
    if act != "gelu_pytorch_tanh":
        raise ModelLoadError(f"config.json: hidden_activation {act!r} is not supported yet, only 'gelu_pytorch_tanh'")
    if data.get("use_bidirectional_attention"):
        raise ModelLoadError("config.json: use_bidirectional_attention is not supported; choose a causal model")
    if data.get("attn_logit_softcapping") is not None:
        raise ModelLoadError("config.json: attn_logit_softcapping is not supported for this family; it must be null")
    full, local = _gemma_ropes(data)
    return DecoderConfig(
        intermediate_size=positive_int(data, "intermediate_size"),
        rms_norm_eps=positive_float(data, "rms_norm_eps", 1e-6),
        ropes=tuple(local if isinstance(kind, SlidingWindow) else full for kind in layer_kinds),
        attention_scale=positive_float(data, "query_pre_attn_scalar", 256.0) ** -0.5,
        activation="gelu_tanh",
        attention_bias=bool(data.get("attention_bias", False)),
        embedding_scale=positive_int(data, "hidden_size") ** 0.5,
        final_soft_cap=optional_positive_float(data, "final_logit_softcapping"),
    )


def _gemma_ropes(data: dict[str, Any]) -> tuple[RopeConfig, RopeConfig]:
    """(of the layers with full attention, of those with a window). `rope_scaling` stretches the former only."""
    nested = data.get("rope_parameters") or {}
    kinds = ("full_attention", "sliding_attention")
    if not isinstance(nested, dict) or not set(nested) <= set(kinds):
        raise ModelLoadError(f"config.json: rope_parameters must hold objects named {' and '.join(kinds)}")
    full, local = ({**(nested.get(kind) or {})} for kind in kinds)
    full |= data.get("rope_scaling") or {}
    return (
        read_rope(data, full, positive_float(data, "rope_theta", 1e6)),
        read_rope(data, local, positive_float(data, "rope_local_base_freq", 1e4)),
    )
