"""DecoderConfig: the family part of a `config.json`, for the families that share one decoder (`models.decoder`).

These are Llama, Mistral, Qwen3 and Gemma: RMS norms, a gated MLP, rotary positions.
"""

from dataclasses import dataclass
from typing import Any

from lullm.config.field import boolean, optional_object, positive_float, positive_int, shown
from lullm.config.rope import RopeConfig, read_rope, read_theta
from lullm.errors import ModelLoadError
from lullm.types.arithmetic import Activation, AttentionFeature
from lullm.types.layer_kind import FullAttention, LayerKind, SlidingWindow

MOST_LAYERS = 1024
"""The deepest known model has 126 layers. Each layer takes about 2 ms to build."""
MOST_INTERMEDIATE = 1 << 20
"""The widest known MLP has 53,248."""


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


def read_layer_kinds(data: dict[str, Any], architecture: str) -> tuple[LayerKind, ...]:
    """One kind per layer, by transformers' rules. Raises ModelLoadError.

    Mistral and Gemma have a window unless it is null. Qwen has one if it is switched on. Other families have none,
    whatever the file says.
    """
    num_layers = positive_int(data, "num_hidden_layers", most=MOST_LAYERS)
    is_qwen = architecture.startswith("Qwen")
    has_window = architecture.startswith(("Mistral", "Gemma")) or is_qwen and boolean(data, "use_sliding_window", False)
    if not has_window or data.get("sliding_window", 4096) is None:
        return (FullAttention(),) * num_layers
    window = SlidingWindow(positive_int(data, "sliding_window", 4096))
    layer_types = data.get("layer_types")
    if layer_types is None:
        return tuple(FullAttention() if is_full else window for is_full in _full_layers(data, architecture, num_layers))
    kinds: dict[Any, LayerKind] = {"full_attention": FullAttention(), "sliding_attention": window}
    if not isinstance(layer_types, list) or not all(str(layer_type) in kinds for layer_type in layer_types):
        raise ModelLoadError(
            f"config.json: layer_types must be a list of {' and '.join(kinds)}, not {shown(layer_types)}"
        )
    if len(layer_types) != num_layers:
        raise ModelLoadError(
            f"config.json: layer_types names {len(layer_types)} layers, num_hidden_layers is {num_layers}"
        )
    return tuple(kinds[layer_type] for layer_type in layer_types)


def _full_layers(data: dict[str, Any], architecture: str, num_layers: int) -> list[bool]:
    """For each layer whether it has full attention, where the file has a window and no `layer_types`."""
    num_full = data.get("max_window_layers", 28) if architecture.startswith("Qwen") else 0
    if not isinstance(num_full, int) or isinstance(num_full, bool):
        raise ModelLoadError(f"config.json: max_window_layers must be an integer, not {shown(num_full)}")
    return [layer < num_full for layer in range(num_layers)]


def read_decoder(data: dict[str, Any], head_dim: int, num_layers: int) -> DecoderConfig:
    """From the parsed `config.json` of a Llama, Mistral or Qwen. Raises ModelLoadError: a field makes no sense."""
    act = data.get("hidden_act", "silu")
    if act != "silu":
        raise ModelLoadError(f"config.json: hidden_act {shown(act)} is not supported yet, only 'silu'")
    parameters = optional_object(data, "rope_parameters") or optional_object(data, "rope_scaling")
    rope = read_rope(data, parameters, read_theta(data, "rope_theta", 10000.0))
    return DecoderConfig(
        intermediate_size=positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE),
        rms_norm_eps=positive_float(data, "rms_norm_eps", 1e-6),
        ropes=(rope,) * num_layers,
        attention_scale=head_dim**-0.5,
        attention_bias=boolean(data, "attention_bias", False),
        mlp_bias=boolean(data, "mlp_bias", False),
    )
