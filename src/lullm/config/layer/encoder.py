"""EncoderConfig: what reads a request's input once, beside a decoder whose layers attend to its rows, too."""

from dataclasses import dataclass
from typing import Literal

from lullm.types.arithmetic import Activation


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """A transformer without a mask (https://arxiv.org/abs/1706.03762). It is as wide as the decoder.

    Args:
        reads: 'audio': log-mel features of a sound, by two convolutions (Whisper, https://arxiv.org/abs/2212.04356);
            'text': token ids, by the decoder's embedding (BART, https://arxiv.org/abs/1910.13461).
        max_rows: rows that it gives at most; of sounds, always.
        num_mels: bands of a sound's features.
        norms_first: norms stand before attention and MLP, and one behind the last layer; else behind the sums.
        learns_positions: positions have a learned table; if False, they are sines and cosines of many wavelengths.
        num_unused_positions: rows of the tables of positions, in front, that no token has.
        start_ids: tokens with which the decoder begins, if a request names none.
        alignment_heads: (layer, head) of those of the decoder whose attention follows what is heard
            (generation_config.json); empty: none are known, for the reason `no_alignment`.
        median_filter_width: of that attention's smoothing over rows; odd.
    """

    reads: Literal["audio", "text"]
    num_layers: int
    num_attention_heads: int
    intermediate_size: int
    activation: Activation
    layer_norm_eps: float
    max_rows: int
    num_mels: int = 0
    norms_first: bool = True
    learns_positions: bool = True
    num_unused_positions: int = 0
    start_ids: tuple[int, ...] = ()
    alignment_heads: tuple[tuple[int, int], ...] = ()
    no_alignment: str = ""
    median_filter_width: int = 7

    @property
    def num_frames(self) -> int:
        """Frames of a sound's features: the second convolution takes every other one."""
        return 2 * self.max_rows

    def rows_of(self, num_frames: int) -> int:
        """Rows of the layers for so many frames."""
        return (num_frames + 1) // 2
