"""The features of Phi-4-multimodal beside transformers' extractor, and rows of sounds beside its encoder."""

import numpy as np
import pytest
import torch
from kit.audio.checkpoint import sound
from kit.model.golden import load_model
from kit.phi4 import AUDIO_ID, write_phi4

from lullm.audio.filter_banks import log_filter_banks
from lullm.audio.tiling import longest_s, num_rows, sound_tiles
from lullm.ops.selection import TORCH_CPU_OPS

LENGTHS = [400, 401, 559, 560, 7000, 15_839, 16_000, 192_077]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_phi4(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(made):
    return load_model(made.folder, max_model_len=64)


def heard(length):
    return np.concatenate([sound(number) for number in range(1 + length // 16_000)])[:length]


@pytest.mark.parametrize("length", LENGTHS)
def test_features(made, model, length):
    samples = heard(length)
    given = made.heard([samples])
    features = log_filter_banks(samples, 80)
    assert features.T.shape == given["audio_input_features"][0].shape
    assert np.abs(features.T - given["audio_input_features"][0].numpy()).max() < 1e-5
    assert num_rows(length, 16_000, model.config.hearing) == int(given["audio_embed_sizes"][0])


def test_lengths(model):
    hearing = model.config.hearing
    assert num_rows(399, 16_000, hearing) == 0 and num_rows(200, 8000, hearing) == 1
    assert longest_s(hearing) == 3600 and not log_filter_banks(np.zeros(399, np.float32), 80).size


@pytest.mark.parametrize("mode", ["speech", "vision"])
@pytest.mark.parametrize("length", [401, 7000, 192_077, 656_000])
def test_rows(made, model, length, mode):
    """The longest one takes more than the 500 rows that see each other."""
    samples = heard(length)
    given, embedding = made.heard([samples]), made.model.model.embed_tokens_extend.audio_embed
    [tile] = sound_tiles(samples, model.config.hearing)
    tile = tile.beside_pictures() if mode == "vision" else tile
    with torch.inference_mode():
        [rows] = model.tile_reader(tile, torch.device("cpu"), TORCH_CPU_OPS)
        ids = torch.full((1, len(rows)), AUDIO_ID)
        [expected] = embedding(ids, made.model.model.embed_tokens(ids), audio_projection_mode=mode, **given)
    assert (len(rows) > 500) == (length > 640_000) and expected.std() > 0.1
    assert (rows - expected).abs().max() < 2e-5


def test_names_tell_how_they_are_read(model):
    [tile] = sound_tiles(heard(7000), model.config.hearing)
    beside = tile.beside_pictures()
    assert beside.digest != tile.digest and beside.digest == tile.beside_pictures().digest
    assert beside.holds_features and beside.pixels == tile.pixels
