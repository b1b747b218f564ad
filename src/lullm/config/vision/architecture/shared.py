"""What architectures share when their pictures are read."""

from collections.abc import Callable
from typing import Any, cast, get_args

from lullm.config.field import shown
from lullm.config.vision.video import VideoConfig
from lullm.config.vision.vision import VisionActivation, VisionConfig
from lullm.errors import ModelLoadError

Read = Callable[[dict[str, Any], dict[str, Any]], VisionConfig]
"""(config.json, the image processor's keys) -> how the model sees pictures. Raises ModelLoadError: a value is not
implemented."""
ReadVideo = Callable[[dict[str, Any], dict[str, Any], VisionConfig], VideoConfig]
"""(config.json, the video processor's keys, how it sees pictures) -> how the model sees videos. Raises as `Read`."""
MOST_SCALE = 64
"""Neighbours on a side that one row is made of."""


def feature_layer(data: dict[str, Any], default: int) -> int:
    layer = data.get("vision_feature_layer", default)
    if not isinstance(layer, int) or isinstance(layer, bool):
        raise ModelLoadError(f"vision_feature_layer {shown(layer)} is not one layer")
    return layer


def activation(data: dict[str, Any]) -> VisionActivation:
    named = data.get("projector_hidden_act", "gelu")
    if named not in get_args(VisionActivation):
        raise ModelLoadError(f"projector_hidden_act is {shown(named)}")
    return cast(VisionActivation, named)
