"""SoundReader: from a window of a sound to rows of the decoder, for models whose prompts hold sounds."""

import re

import torch
from torch import Tensor, nn

from lullm.config.hearing.hearing import HearingConfig
from lullm.config.layer.conformer import ConformerConfig
from lullm.config.layer.encoder import EncoderConfig
from lullm.models.encoder.conformer import ConformerReader
from lullm.models.encoder.sound import SoundEncoder
from lullm.models.protocol import Model
from lullm.models.vision.parts import dense
from lullm.ops.table import Ops
from lullm.types.vision.tile import EDGE_FRAMES, Tile
from lullm.weights.rule import SOUNDS, THINKER, WeightRules, renames, with_part

_OF_LAYERS = r"^(hearing\.tower\.layers\.\d+\.)"
_RENAMES = (
    THINKER,
    *renames(
        # as Phi-4-multimodal spells them, in transformers' words and in its authors'
        (r"^(model\.)?embed_tokens_extend\.audio_embed\.encoder\.encoders\.", "hearing.tower.layers."),
        (r"^(model\.)?embed_tokens_extend\.audio_embed\.encoder\.", "hearing.tower."),
        (r"^(model\.)?embed_tokens_extend\.audio_embed\.(audio_projection\.)?", "hearing."),
        (r"^hearing\.(up_proj_for_speech|speech\.0)\.", "hearing.connector.linear_1."),
        (r"^hearing\.(down_proj_for_speech|speech\.2)\.", "hearing.connector.linear_2."),
        (r"^hearing\.(up_proj_for_vision_speech|vision\.0)\.", "hearing.beside_pictures.linear_1."),
        (r"^hearing\.(down_proj_for_vision_speech|vision\.2)\.", "hearing.beside_pictures.linear_2."),
        (r"^hearing\.tower\.encoder_embedding\.global_mean$", "hearing.tower.mean"),
        (r"^hearing\.tower\.encoder_embedding\.global_invstd$", "hearing.tower.factor"),
        (r"^hearing\.tower\.relative_attention_bias_layer\.bias_values\.", "hearing.tower.distances."),
        (_OF_LAYERS + r"(feed_forward_(?:in|out))\.(gate_up_proj|net\.0\.linear)\.", r"\1\2.fc1."),
        (_OF_LAYERS + r"(feed_forward_(?:in|out))\.(down_proj|net\.2)\.", r"\1\2.fc2."),
        (_OF_LAYERS + r"self_attn\.linear_([qkv])\.", r"\1self_attn.\2_proj."),
        (_OF_LAYERS + r"self_attn\.(o_proj|linear_out)\.", r"\1self_attn.out_proj."),
        (_OF_LAYERS + r"conv\.glu\.ext_pw_conv_1d\.", r"\1conv.gated."),
        (_OF_LAYERS + r"conv\.glu\.b1$", r"\1conv.value_bias"),
        (_OF_LAYERS + r"conv\.glu\.b2$", r"\1conv.gate_bias"),
        (_OF_LAYERS + r"conv\.dw_sep_conv_1d\.dw_conv\.", r"\1conv.by_element."),
        (_OF_LAYERS + r"conv\.dw_sep_conv_1d\.pw_conv\.", r"\1conv.mixed."),
        (_OF_LAYERS + r"conv\.ext_pw_conv_1d\.", r"\1conv.result."),
        (r"^(model\.)?audio_tower\.", "hearing.tower."),
        (r"^(model\.)?multi_modal_projector\.", "hearing.connector."),
        # as Qwen2.5-Omni spells them
        (r"^hearing\.tower\.ln_post\.", "hearing.tower.layer_norm."),
        (r"^hearing\.tower\.proj\.", "hearing.connector.linear."),
    ),
)
"""Newer and older names."""
_BIASES = re.compile(r"^hearing\.tower\.layers\.\d+\.conv\.(value|gate)_bias$")
"""They are `[1, size, 1]`."""
_UNUSED = re.compile(r"^hearing\.tower\.audio_bos_eos_token\.")
_NO_BIAS = re.compile(r"^hearing\.tower\.layers\.\d+\.self_attn\.k_proj\.bias$")
"""Keys have none, as Whisper's."""


class Connector(nn.Module):
    """One linear layer, or two with an activation between them; see `HearingConfig`."""

    def __init__(self, config: HearingConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        size, self.activation = config.encoder_size * config.num_joined, config.connector_act
        if self.activation is None:
            self.linear = dense(size, hidden_size, True, dtype)
        else:
            self.linear_1 = dense(size, hidden_size, False, dtype)
            self.linear_2 = dense(hidden_size, hidden_size, False, dtype)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [R, D] -> [R, H]
        if self.activation is None:
            out: Tensor = self.linear(x, ops)
            return out
        out = self.linear_2(ops.activate(self.linear_1(x, ops), self.activation), ops)
        return out


class SoundReader(nn.Module):
    """The encoder and the connector. Workers that share a model have all of it each, as of a tower of pictures."""

    def __init__(self, config: HearingConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        assert isinstance(config.encoder, EncoderConfig)
        self.tower = SoundEncoder(config.encoder, config.encoder_size, dtype)
        self.connector = Connector(config, hidden_size, dtype)

    def forward(self, tile: Tile, device: torch.device, ops: Ops) -> Tensor:
        """The rows of a window, on the device: `[1, R, H]`, see `ShownRows`."""
        config, num_frames = self.config, tile.width - EDGE_FRAMES
        num_seen = num_frames if config.windows == "cut" else tile.width
        x = self.tower.heard(tile, num_seen, config.encoder.rows_of(num_frames), device, ops)
        if config.num_averaged > 1:
            x = _groups(x, config.num_averaged).mean(1)
        x = self.tower.layer_norm(x, ops)
        return self.connector(_groups(x, config.num_joined).flatten(1), ops)[None]


def _groups(x: Tensor, size: int) -> Tensor:  # [R, D] -> [R / size, size, D]
    """Neighbours; those that fill no group are left out."""
    return x[: len(x) // size * size].unflatten(0, (-1, size))


def add_hearing(model: Model, dtype: torch.dtype) -> None:
    """Give a model what hears (`ModelConfig.hearing`), its parameters on the meta device, with their rules.

    Only the first stage of a pipeline embeds, so only it needs them.
    """
    config = model.config
    if config.hearing is not None and config.stage.is_first:
        reader = ConformerReader if isinstance(config.hearing.encoder, ConformerConfig) else SoundReader
        model.hearing = reader(config.hearing, config.hidden_size, dtype)
        model.rules = _with_hearing(model.rules)


def _with_hearing(rules: WeightRules) -> WeightRules:
    rules = with_part(rules, SOUNDS)
    return rules.plus(_RENAMES, drops=(_UNUSED,), zeros=(_NO_BIAS,), flattens=(_BIASES,))
