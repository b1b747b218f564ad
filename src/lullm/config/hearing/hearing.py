"""HearingConfig: how a decoder hears. An encoder reads a sound in windows; a connector makes its rows.

The rows stand in a prompt in place of tokens, as those of a picture do. (Whisper's decoder attends to an encoder
instead: `DecoderConfig.encoder`.)
"""

from dataclasses import dataclass
from typing import Literal

from lullm.config.layer.conformer import ConformerConfig
from lullm.config.layer.encoder import EncoderConfig
from lullm.types.arithmetic import Activation

Windows = Literal["one", "filled", "cut", "whole"]
Features = Literal["log_mel", "filter_banks"]


@dataclass(frozen=True, slots=True)
class HearingConfig:
    """All of it.

    Args:
        encoder: the layers. `max_rows`: of a whole window, before any are joined.
        encoder_size: elements of the encoder's rows.
        audio_token_id: the id in a prompt in place of each row of a sound, and of a whole one before it is expanded.
        num_averaged: the encoder takes the mean of so many neighbours before its last norm (Qwen2-Audio,
            https://arxiv.org/abs/2407.10759).
        num_joined: the connector reads so many neighbours side by side (Voxtral, https://arxiv.org/abs/2507.13264).
        connector_act: between two linear layers without biases; None: there is one layer, with a bias.
        windows: 'one': a sound has one, and as many rows as it is long; 'filled': any number, and silence fills the
            last one, and is heard; 'cut': any number, the last one as long as what is left. Convolutions see silence
            behind 'one' and 'filled', and nothing behind each of 'cut' (Qwen2.5-Omni,
            https://arxiv.org/abs/2503.20215); 'whole': one, of any length.
        most_frames: of a whole sound, with 'cut'.
        features: that the encoder reads (`lullm.audio`).
        tells_pictures: a sound has other rows in a prompt with pictures.
        spells, numbered: see VisionConfig.
    """

    encoder: EncoderConfig | ConformerConfig
    encoder_size: int
    audio_token_id: int
    num_averaged: int = 1
    num_joined: int = 1
    connector_act: Activation | None = None
    windows: Windows = "one"
    most_frames: int = 0
    features: Features = "log_mel"
    tells_pictures: bool = False
    spells: str | None = None
    numbered: str = ""

    def rows_of(self, num_frames: int) -> int:
        """Rows of the decoder for one window with so many frames."""
        return self.encoder.rows_of(num_frames) // (self.num_averaged * self.num_joined)

    @property
    def window_rows(self) -> int:
        """Rows of the decoder for a whole window."""
        return self.rows_of(self.encoder.num_frames)

    def rows_of_sound(self, num_frames: int) -> int:
        """Rows of the decoder for a sound with so many frames. 'one' has no more than `window_rows`."""
        window = self.encoder.num_frames
        if self.windows == "whole":
            return self.rows_of(num_frames)
        if self.windows == "one":
            return self.rows_of(min(num_frames, window))
        num_whole, rest = divmod(num_frames, window)
        of_rest = self.window_rows if rest and self.windows == "filled" else self.rows_of(rest)
        return num_whole * self.window_rows + of_rest
