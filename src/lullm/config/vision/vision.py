"""VisionConfig: how a model sees pictures. A tower reads square tiles; a connector makes rows of the decoder of them.

A checkpoint's own names are kept where it has one.
"""

from dataclasses import dataclass
from typing import Literal

VisionActivation = Literal["quick_gelu", "gelu", "gelu_pytorch_tanh", "relu", "silu"]
Fit = Literal["crop", "stretch", "split"]


@dataclass(frozen=True, slots=True)
class TowerConfig:
    """A transformer over the patches of a tile, without a mask: CLIP's (https://arxiv.org/abs/2103.00020) or SigLIP's.

    Args:
        num_layers: those whose results are used; a checkpoint may hold more.
        image_size: edge in pixels of the pictures that the learned positions are for.
        is_clip: with CLIP's row for the whole picture before those of the patches, and a norm behind the embedding.
        has_post_norm: a norm comes after the last layer.
        drops_first: the first row is left out (`vision_feature_select_strategy` 'default').
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    patch_size: int
    image_size: int
    hidden_act: VisionActivation
    layer_norm_eps: float
    is_clip: bool
    has_post_norm: bool
    drops_first: bool

    @property
    def num_sides(self) -> int:
        """Patches on each side of `image_size`."""
        return self.image_size // self.patch_size


@dataclass(frozen=True, slots=True)
class MLPConnector:
    """Two linear layers with an activation between them (LLaVA 1.5, https://arxiv.org/abs/2310.03744)."""

    hidden_act: VisionActivation
    has_bias: bool


@dataclass(frozen=True, slots=True)
class ShuffleConnector:
    """One linear layer over `scale_factor` x `scale_factor` neighbours (Idefics3, https://arxiv.org/abs/2408.12637)."""

    scale_factor: int


@dataclass(frozen=True, slots=True)
class PictureForm:
    """From a picture to the pixels of its tiles.

    Args:
        edge: of a tile, in pixels.
        fit: 'crop': the shorter edge becomes `resize_edge`, and the middle is cut out; 'stretch': to one tile, whatever
            the shape; 'split': the longer edge becomes `resize_edge`, then both the next multiples of `edge`. The
            picture becomes a grid of tiles, with a small copy of the whole behind them; one of a single tile has no
            copy.
        splits: with 'split': False: a picture is resized in the same two steps, but to one tile.
        pads: pictures first become squares, with borders of the mean color.
        resample: Pillow's number of the filter.
        rescale_factor, image_mean, image_std: a value v of a channel becomes (v * factor - mean) / std.
    """

    edge: int
    fit: Fit
    resize_edge: int
    splits: bool
    pads: bool
    resample: int
    rescale_factor: float
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """All of it.

    Args:
        image_token_id: the id in a prompt in place of each row of a picture, and of a whole one before it is expanded.
        is_framed: tiles have words around them, which tell their places (Idefics3).
    """

    tower: TowerConfig
    connector: MLPConnector | ShuffleConnector
    picture: PictureForm
    image_token_id: int
    is_framed: bool

    @property
    def rows_per_tile(self) -> int:
        """Rows of the decoder for a tile."""
        num_patches = (self.picture.edge // self.tower.patch_size) ** 2
        if isinstance(self.connector, ShuffleConnector):
            return num_patches // self.connector.scale_factor**2
        return num_patches + self.tower.is_clip - self.tower.drops_first
