"""VisionConfig: how a model sees pictures. A tower reads square tiles; a connector makes rows of the decoder of them.

A checkpoint's own names are kept where it has one.
"""

from dataclasses import dataclass
from typing import Literal

VisionActivation = Literal["quick_gelu", "gelu", "gelu_pytorch_tanh", "relu", "silu"]
Fit = Literal["crop", "stretch", "split", "grid"]
Positions = Literal["each", "nearest", "none"]
TowerNorm = Literal["layer_norm", "rms_norm"]
Frame = Literal["none", "ends", "places"]


@dataclass(frozen=True, slots=True)
class TowerConfig:
    """A transformer over the patches of a tile, without a mask: CLIP's (https://arxiv.org/abs/2103.00020), SigLIP's or
    InternViT's (https://arxiv.org/abs/2312.14238).

    Args:
        num_layers: those whose results are used; a checkpoint may hold more.
        image_size: edge in pixels of the pictures that the learned positions are for.
        positions: 'each': a tile has the patches of the table; 'nearest': it may have fewer, and each takes the
            position that is nearest by its share of the edge; 'none': there is no table.
        has_class_row: a learned row for the whole picture comes before those of the patches.
        is_batched: a checkpoint holds that row and the table of positions as a batch of one.
        has_patch_bias: the patches' matrix has one. has_attention_bias: queries, keys and values have one.
        has_pre_norm: a norm comes behind the embedding.
        has_post_norm: a norm comes after the last layer.
        norm: of the layers, before attention and MLP.
        has_qk_norm: queries and keys are normalized, over all heads together.
        has_scales: the results of attention and MLP are scaled by learned vectors (https://arxiv.org/abs/2103.17239).
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
    positions: Positions
    has_class_row: bool
    is_batched: bool
    has_patch_bias: bool
    has_attention_bias: bool
    has_pre_norm: bool
    has_post_norm: bool
    norm: TowerNorm
    has_qk_norm: bool
    has_scales: bool
    drops_first: bool

    @property
    def num_sides(self) -> int:
        """Patches on each side of `image_size`."""
        return self.image_size // self.patch_size


@dataclass(frozen=True, slots=True)
class MLPConnector:
    """Two linear layers with an activation between them (LLaVA 1.5, https://arxiv.org/abs/2310.03744).

    Args:
        has_norm: a norm comes before them (InternVL). scale_factor: they read as many squared neighbours side by side.
    """

    hidden_act: VisionActivation
    has_bias: bool
    has_norm: bool = False
    scale_factor: int = 1


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
            copy; 'grid': it is stretched to a grid of tiles, `min_tiles` to `max_tiles` of them in the shape that is
            nearest to its own, with the same copy.
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
    min_tiles: int = 1
    max_tiles: int = 1


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """All of it.

    Args:
        image_token_id: the id in a prompt in place of each row of a picture, and of a whole one before it is expanded.
        frame: the words around a picture: 'none'; 'ends': before its first tile and behind its last one (InternVL);
            'places': around all tiles, and they tell the places (Idefics3).
    """

    tower: TowerConfig
    connector: MLPConnector | ShuffleConnector
    picture: PictureForm
    image_token_id: int
    frame: Frame

    @property
    def rows_per_tile(self) -> int:
        """Rows of the decoder for a tile."""
        num_patches = (self.picture.edge // self.tower.patch_size) ** 2
        num_others = self.tower.has_class_row - self.tower.drops_first
        return (num_patches + num_others) // self.connector.scale_factor**2
