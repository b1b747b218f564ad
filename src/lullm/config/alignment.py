"""The heads of a decoder that follow what an encoder reads, named in generation_config.json (`alignment_heads`)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from lullm.config.field import LARGEST_ID, shown
from lullm.config.json_file import optional_object
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError

_KEY = "alignment_heads"


def with_alignment(model: ModelConfig, folder: Path) -> ModelConfig:
    """The config of a model with an encoder and its alignment heads. Raises ModelLoadError: they are no such list.

    The file is the folder's own, whatever the option `generation_config` says: heads are no defaults.
    """
    encoder = model.encoder
    if encoder is None:
        return model
    path = folder / "generation_config.json"
    heads, reason = _read_heads(optional_object(path).get(_KEY), path), ""
    if not heads:
        reason = f"{path.name} has no {_KEY}: a list of [layer, head] of its decoder, which whoever trained it knows"
    # Distilled models are published with the list of their teacher, which has more layers.
    elif far := [pair for pair in heads if pair[0] >= model.num_hidden_layers or pair[1] >= model.num_attention_heads]:
        reason = (
            f"{path.name}: {_KEY} names head {far[0][1]} of layer {far[0][0]}, and its decoder has "
            f"{model.num_hidden_layers} layers of {model.num_attention_heads} heads"
        )
        heads = ()
    aligned = replace(encoder, alignment_heads=heads, no_alignment=reason)
    return replace(model, family=replace(model.family, encoder=aligned))


def _read_heads(value: Any, path: Path) -> tuple[tuple[int, int], ...]:
    pairs = [] if value is None else value
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ModelLoadError(f"{path}: {_KEY} must be a list of [layer, head], not {shown(value)}")
    numbers = [number for pair in pairs for number in pair]
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= LARGEST_ID for n in numbers):
        raise ModelLoadError(f"{path}: {_KEY} must be numbers from 0, not {shown(value)}")
    return tuple((layer, head) for layer, head in pairs)
