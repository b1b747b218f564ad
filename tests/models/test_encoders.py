"""Encoders beside transformers: their rows, and every key of their config classes."""

import dataclasses

import numpy as np
import pytest
import torch
from kit.audio.checkpoint import WHISPER, sound, write_whisper
from kit.model.bart import write_bart
from kit.model.golden import assert_close, load_model
from transformers import BartConfig, WhisperConfig

from lullm.audio.features import log_mel
from lullm.config.family.keys import COMMON_FIXED, COMMON_IGNORES, COMMON_READS
from lullm.config.family.table import ALL_STYLES, ENCODED_FAMILIES, FAMILIES
from lullm.config.model import ModelConfig
from lullm.errors import FamilyLimitError, ModelLoadError
from lullm.models.registry import builder_of
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.types.packed import pack
from lullm.types.vision.tile import Tile

CLASSES = {"BartForConditionalGeneration": BartConfig, "WhisperForConditionalGeneration": WhisperConfig}


def test_rows_are_those_of_transformers(tmp_path):
    whisper = write_whisper(tmp_path, num_mel_bins=96)
    heard = sound(3, 0.8)
    model = load_model(tmp_path, max_model_len=64)
    features = log_mel(heard, 96, 100)
    with torch.inference_mode():
        tile = Tile.of(96, 100, features.tobytes())
        [rows] = model.tile_reader(tile, torch.device("cpu"), TORCH_CPU_OPS)
        given = torch.from_numpy(features)[None]
        [expected] = whisper.model.model.encoder(given).last_hidden_state
    assert np.abs((rows - expected).numpy()).max() < 2e-5
    assert_close(rows, expected)


def test_rows_of_texts_are_those_of_transformers(tmp_path):
    bart = write_bart(tmp_path)
    model, ids = load_model(tmp_path, max_model_len=64), [0, 5, 9, 301, 2]
    with torch.inference_mode():
        [rows] = model.tile_reader(Tile.of(1, len(ids), pack(ids)), torch.device("cpu"), TORCH_CPU_OPS)
        [expected] = bart.model.model.encoder(torch.tensor([ids])).last_hidden_state
    assert np.abs((rows - expected).numpy()).max() < 2e-5


def test_every_architecture_is_built():
    assert CLASSES.keys() == ENCODED_FAMILIES.keys() and not ENCODED_FAMILIES.keys() & FAMILIES.keys()
    assert all(callable(builder_of(architecture)) for architecture in ALL_STYLES)


@pytest.mark.parametrize("architecture", CLASSES)
def test_every_key_is_declared_with_the_default_of_transformers(architecture):
    family, fields = ENCODED_FAMILIES[architecture], dataclasses.fields(CLASSES[architecture])
    declared = COMMON_READS | COMMON_FIXED.keys() | COMMON_IGNORES | family.reads | family.fixed.keys() | family.ignores
    declared |= family.aliases.keys() | family.defaults.keys()
    assert {field.name for field in fields if not field.name.startswith("_")} <= declared
    defaults = {field.name: field.default for field in fields}
    assert family.defaults == {name: defaults[name] for name in family.defaults}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_mel_bins", 0),
        ("max_source_positions", "many"),
        ("encoder_attention_heads", 3),
        ("encoder_layers", None),
        ("activation_function", "tanh"),
        ("is_encoder_decoder", False),
        ("sliding_window_size", 9),
    ],
)
def test_what_is_wrong_is_named(key, value):
    data = {"architectures": ["WhisperForConditionalGeneration"], **WHISPER, key: value}
    if value is None:  # as if it were missing
        assert ModelConfig.from_dict(data).encoder.num_layers == WhisperConfig().encoder_layers
        return
    with pytest.raises((ModelLoadError, FamilyLimitError), match=key):
        ModelConfig.from_dict(data)
