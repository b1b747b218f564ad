"""ConformerConfig: an encoder of sounds whose layers convolve, too (https://arxiv.org/abs/2005.08100)."""

from dataclasses import dataclass

from lullm.types.arithmetic import Activation
from lullm.units import cdiv


@dataclass(frozen=True, slots=True)
class ConformerConfig:
    """Convolutions make a row of `stride` frames. A layer is half an MLP, attention, convolutions over rows before one,
    half an MLP, and a norm. MLPs and convolutions have gates, and nothing has a position but by learned biases on
    scores, for each head and distance (Phi-4-multimodal, https://arxiv.org/abs/2503.01743).

    Args:
        num_mels: bands of a sound's features. stride: a power of 2. num_channels: of the first convolutions.
        intermediate_size, activation: of the MLPs. stem_activation, gate_activation, conv_activation: of the first
            convolutions, and of the gates and the results of those in layers.
        kernel_size: rows that a layer's convolution sees, its own included. num_filters: of each element there.
        max_distance: beyond it all distances have one bias.
        max_rows: that see each other; those of longer sounds are cut into parts of so many.
    """

    num_layers: int
    num_attention_heads: int
    intermediate_size: int
    num_mels: int
    stride: int
    num_channels: int
    activation: Activation
    stem_activation: Activation
    gate_activation: Activation
    conv_activation: Activation
    kernel_size: int
    num_filters: int
    max_distance: int
    max_rows: int = 500

    @property
    def num_frames(self) -> int:
        """Frames of a sound's features for `max_rows`."""
        return self.max_rows * self.stride

    def rows_of(self, num_frames: int) -> int:
        return cdiv(num_frames, self.stride)
