"""VisionConfig: how a model sees pictures. A tower reads tiles; a connector makes rows of the decoder of them.

A checkpoint's own names are kept where it has one.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lullm.config.vision.form import PictureForm
from lullm.config.vision.video import VideoConfig
from lullm.types.vision.grid import SquareGrid
from lullm.units import cdiv

VisionActivation = Literal["quick_gelu", "gelu", "gelu_pytorch_tanh", "relu", "silu"]
Positions = Literal["each", "nearest", "linear", "middle", "cubic", "axes", "none"]
TowerNorm = Literal["layer_norm", "rms_norm"]
Frame = Literal["none", "ends", "places", "words", "lines", "marks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerTraits:
    """What the kind of a tower (`tower_kind`) says alone, whatever its file says.

    Args:
        has_class_row: a learned row for the whole picture comes before those of the patches.
        is_batched: a checkpoint holds that row and the table of positions as a batch of one.
        channels_last: the patches' matrix reads all channels of a pixel, then those of the next one.
        has_patch_bias: the patches' matrix has one. has_bias: all others have one, but for those of
            queries, keys and values.
        has_patch_norm: a norm comes behind the patches' matrix. has_pre_norm: one comes behind the embedding.
        has_result_norms: the results of attention and MLP are normalized, too.
        has_head_norms: each head of queries and keys is normalized. has_value_norms: of values, too, without weights.
        has_scales: the results of attention and MLP are scaled by learned vectors (https://arxiv.org/abs/2103.17239).
        is_fused: queries, keys and values are results of one matrix.
        is_gated: MLPs have gates.
        in_halves: of heads that rotate, a checkpoint has the pairs of columns in the first half, those of lines in the
            second one.
        alternates: of the frequencies of all pairs, those with even numbers are the lines', those with odd ones the
            columns'; if False, both have the even ones.
        attention_scale: of scores; None: 1 / sqrt(elements of a head).
    """

    has_class_row: bool = False
    is_batched: bool = False
    channels_last: bool = False
    has_patch_bias: bool = True
    has_bias: bool = True
    has_patch_norm: bool = False
    has_pre_norm: bool = False
    has_result_norms: bool = False
    has_head_norms: bool = False
    has_value_norms: bool = False
    has_scales: bool = False
    is_fused: bool = False
    is_gated: bool = False
    in_halves: bool = False
    alternates: bool = False
    attention_scale: float | None = None


@dataclass(frozen=True, slots=True)
class TowerConfig(TowerTraits):
    """A transformer over the patches of a tile, without a mask: CLIP's (https://arxiv.org/abs/2103.00020), SigLIP's,
    InternViT's (https://arxiv.org/abs/2312.14238), Qwen2-VL's (https://arxiv.org/abs/2409.12191), Qwen2.5-VL's
    (https://arxiv.org/abs/2502.13923), Qwen3-VL's (https://arxiv.org/abs/2511.21631), GLM-4.1V's
    (https://arxiv.org/abs/2507.01006), Pixtral's (https://arxiv.org/abs/2410.07073) or Gemma 4's.

    Args:
        num_layers: those whose results are used; a checkpoint may hold more.
        image_size: edge in pixels of the pictures that the learned positions are for; 0: there are none.
        positions: 'each': a tile has the patches of the table; 'nearest': it may have fewer, and each takes the
            position that is nearest by its share of the edge; 'linear': any number, and each takes the mean of
            the four positions around it, weighted by their nearness, where the ends of an edge are those of the table;
            'middle': the same, but a patch stands in the middle of its part of the edge; 'cubic': as 'middle', and each
            takes a mix of the sixteen around it; 'axes': `num_positions` of columns and as many of lines, and each
            takes the sum of both; 'none': there is no table.
        num_positions: with 'axes'.
        post_norm: a norm after the last layer; None: there is none.
        norm: of the layers, before attention and MLP.
        has_attention_bias: queries, keys and values have one.
        has_qk_norm: queries and keys are normalized, over all heads together.
        is_clipped: inputs and results of all matrices are kept within learned bounds.
        drops_first: the first row is left out (`vision_feature_select_strategy` 'default').
        num_frames: a patch's matrix reads so many pictures of a film, and a still one repeated; 0: it reads one.
        rope_theta: base frequency of heads of which half of the pairs rotate by the line of a patch, half by its
            column; 0: they do not.
        window: patches on a side of the squares within which patches see each other; 0: all see all.
        full_layers: numbers of the layers without these windows.
        deep_layers: numbers of layers whose results are used, too, ascending: each by a connector of its own, which
            has a norm. The decoder adds them to its rows, behind its first layers (https://arxiv.org/abs/2406.04334).
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
    has_attention_bias: bool
    post_norm: TowerNorm | None
    norm: TowerNorm
    has_qk_norm: bool
    drops_first: bool
    num_frames: int = 0
    rope_theta: float = 0.0
    window: int = 0
    full_layers: tuple[int, ...] = ()
    deep_layers: tuple[int, ...] = ()
    num_positions: int = 0
    is_clipped: bool = False

    @property
    def num_sides(self) -> int:
        """Patches on each side of `image_size`."""
        return self.image_size // self.patch_size


@dataclass(frozen=True, slots=True)
class MLPConnector:
    """Two linear layers with an activation between them (LLaVA 1.5, https://arxiv.org/abs/2310.03744).

    Args:
        has_norm: a norm comes before them (InternVL). norms_patches: it is of each patch, not of all that they read
            side by side (PaddleOCR-VL). scale_factor: they read as many squared neighbours side by side.
        keeps_width: the first layer's rows are as wide as those that it reads (Qwen2-VL), not as the decoder's.
        norm_eps: of the norm.
    """

    hidden_act: VisionActivation
    has_bias: bool
    has_norm: bool = False
    scale_factor: int = 1
    keeps_width: bool = False
    norm_eps: float = 1e-5
    norms_patches: bool = False


@dataclass(frozen=True, slots=True)
class ShuffleConnector:
    """One linear layer over `scale_factor` x `scale_factor` neighbours (Idefics3, https://arxiv.org/abs/2408.12637)."""

    scale_factor: int


@dataclass(frozen=True, slots=True)
class PoolConnector:
    """The mean of `scale_factor` x `scale_factor` neighbours, a norm, and one linear layer (Gemma 3,
    https://arxiv.org/abs/2503.19786).
    """

    scale_factor: int
    norm_eps: float


@dataclass(frozen=True, slots=True)
class MergeConnector:
    """A norm, a linear layer that makes one row of `scale_factor` x `scale_factor` neighbours, and the two of
    `MLPConnector` (Mistral 3).
    """

    hidden_act: VisionActivation
    has_bias: bool
    scale_factor: int
    norm_eps: float


@dataclass(frozen=True, slots=True)
class MeanConnector:
    """The mean of `scale_factor` x `scale_factor` neighbours, times `scale`, a norm without weights, and one linear
    layer (Gemma 4). `is_standardized`: a learned vector is subtracted before the norm, and the rest multiplied by one.
    """

    scale_factor: int
    scale: float
    norm_eps: float
    is_standardized: bool


@dataclass(frozen=True, slots=True)
class GatedConnector:
    """A linear layer that makes one row of `scale_factor` x `scale_factor` neighbours, another one, a norm, GELU, and
    an MLP as the tower's, with `intermediate_size` gates (GLM-4.1V, https://arxiv.org/abs/2507.01006).
    """

    scale_factor: int
    intermediate_size: int


@dataclass(frozen=True, slots=True)
class MosaicConnector:
    """The mean of `scale_factor` x `scale_factor` neighbours. Behind each line of a grid, and of the whole picture,
    stands a learned row, and another one between the grid, which is first, and the whole; then two linear layers with
    GELU between them (Phi-4-multimodal, https://arxiv.org/abs/2503.01743).
    """

    scale_factor: int


Connector = (
    MLPConnector | ShuffleConnector | PoolConnector | MergeConnector | MeanConnector | GatedConnector | MosaicConnector
)


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """All of it.

    Args:
        image_token_id: the id in a prompt in place of each row of a picture, and of a whole one before it is expanded.
        frame: the words around a picture: 'none'; 'ends': before its first tile and behind its last one (InternVL);
            'places': around all tiles, and they tell the places (Idefics3); 'words': around each tile, words between
            them, and newlines that become one token with those of the text beside them (Gemma 3); 'lines': behind each
            line of rows (Pixtral); 'marks': one token before each tile, and one behind it (Gemma 4).
        axes: rows of pictures have planes of positions (M-RoPE, https://arxiv.org/abs/2409.12191), and each pair of a
            head rotates by one of them: 0 where the picture begins, 1 plus the line, 2 plus the column; empty:
            positions run on through a picture.
        place_token_id: the id in a prompt in place of a whole picture, if it is not `image_token_id`. end_token_id: the
            one behind the rows of a tile, whose first one is `place_token_id`; both of frame 'words'.
        begin_token_id: the one before them, with frame 'marks'.
        is_mutual: the decoder's rows of a tile see each other, whatever their order. in_windows: only in layers with
            sliding windows.
        has_newline: a learned row stands behind each line of rows in a grid of squares (LLaVA-NeXT).
        max_squares: such grids have at most about the rows of so many squares, and are made smaller until they do
            (LLaVA-OneVision); 0: no bound.
        weights_file: the GGUF file of tower and connector; None: the checkpoint holds them.
        spells: a chat template that takes strings only gets the word of a picture in its place, as the authors' code
            writes it, and this beside it; None: it must have a place.
        numbered: a regular expression of words that plain prompts may have in place of the picture's; empty: none.
        video: how it sees videos; None: not at all, for the reason `no_video`.
    """

    tower: TowerConfig
    connector: Connector
    picture: PictureForm
    image_token_id: int
    frame: Frame
    axes: tuple[int, ...] = ()
    place_token_id: int | None = None
    end_token_id: int | None = None
    begin_token_id: int | None = None
    is_mutual: bool = False
    in_windows: bool = False
    has_newline: bool = False
    max_squares: int = 0
    weights_file: Path | None = None
    spells: str | None = None
    numbered: str = ""
    video: VideoConfig | None = None
    no_video: str = ""

    @property
    def placeholder_id(self) -> int:
        """The id in a prompt in place of a whole picture."""
        return self.image_token_id if self.place_token_id is None else self.place_token_id

    def rows_of(self, height: int, width: int, grid: SquareGrid | None = None) -> int:
        """Rows of the decoder for a tile of this shape."""
        if grid is not None and grid.is_cornered:
            factor, num_sides = self.connector.scale_factor, self.tower.num_sides
            lines, columns = (cdiv(length, factor) for length in grid.seen(self.picture.edge, num_sides))
            side = num_sides // factor
            return lines * (columns + 1) + 1 + side * (side + 1)
        if grid is not None:
            lines, columns = grid.packed(self.tower.num_sides, self.max_squares)
            return self.rows_of(width, width) + lines * (columns + self.has_newline)
        num_patches = (height // self.tower.patch_size) * (width // self.tower.patch_size)
        num_others = self.tower.has_class_row - self.tower.drops_first
        return (num_patches + num_others) // self.connector.scale_factor**2

    def form_of(self, num_frames: int) -> PictureForm:
        """The form of a tile of so many frames; of none: of a picture."""
        return self.video.form.frame if num_frames and self.video is not None else self.picture

    def line_of(self, width: int) -> int:
        """See `RowGeometry.line_len`."""
        return width // self.tower.patch_size // self.connector.scale_factor + 1 if self.frame == "lines" else 0

    def tokens_of(self, height: int, width: int, grid: SquareGrid | None = None) -> int:
        """Tokens of a tile in a prompt: its rows, and the words between lines of them."""
        num_rows, line_len = self.rows_of(height, width, grid), self.line_of(width)
        return num_rows + num_rows // (line_len - 1) if line_len else num_rows

    def columns_of(self, width: int) -> int:
        """See `RowGeometry.num_columns`."""
        return width // self.tower.patch_size // self.connector.scale_factor if self.axes else 0
