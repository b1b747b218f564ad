"""The windows of a sound beside transformers' feature extractor, and their rows beside its encoder and projector."""

import numpy as np
import pytest
import torch
from kit.audio.checkpoint import sound
from kit.audio.hearing import write_qwen2_audio, write_voxtral
from kit.model.golden import load_model
from kit.omni import write_omni
from transformers import WhisperFeatureExtractor

from lullm.audio.tiling import longest_s, num_rows, sound_tiles, window_s
from lullm.config.hearing.hearing import HearingConfig
from lullm.config.layer.encoder import EncoderConfig
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.types.vision.tile import EDGE_FRAMES

LENGTHS = [1, 160, 161, 321, 7000, 15_680, 15_839, 15_840, 15_841, 16_000]
"""In samples, up to a second."""


def hearing_of(is_filled, num_mels=80, max_rows=50):
    encoder = EncoderConfig("audio", 1, 2, 160, "gelu", 1e-5, max_rows, num_mels)
    return HearingConfig(
        encoder,
        32,
        3,
        num_averaged=1 + (not is_filled),
        num_joined=5 if is_filled else 1,
        windows="filled" if is_filled else "one",
    )


def cut_hearing():
    encoder = EncoderConfig("audio", 1, 2, 160, "gelu", 1e-5, 8, 80, learns_positions=False)
    return HearingConfig(encoder, 32, 3, num_averaged=2, windows="cut", most_frames=200)


def features_of(tile):
    features = np.frombuffer(tile.pixels, np.float32).reshape(tile.height, tile.width)
    return features[:, :-EDGE_FRAMES], features[:, -EDGE_FRAMES:]


@pytest.mark.parametrize("length", LENGTHS)
def test_one_window(length):
    """What the convolutions see of the features is transformers', and zeros behind the window, as their padding."""
    heard, hearing = sound(2)[:length], hearing_of(False)
    [tile] = sound_tiles(heard, hearing)
    given = WhisperFeatureExtractor(80, chunk_length=1)(
        heard, sampling_rate=16_000, return_tensors="np", padding="max_length", return_attention_mask=True
    )
    num_frames = int(given["attention_mask"].sum())
    features, edge = features_of(tile)
    assert features.shape[1] == num_frames and num_rows(length, 16_000, hearing) == max(
        ((num_frames - 1) // 2 - 1) // 2 + 1, 0
    )
    framed = np.pad(given["input_features"][0], ((0, 0), (0, EDGE_FRAMES)))[:, : num_frames + EDGE_FRAMES]
    assert np.abs(np.concatenate([features, edge], 1) - framed).max() < 5e-5


@pytest.mark.parametrize("length", [*LENGTHS, 16_001, 40_000, 48_000])
def test_windows_that_silence_fills(length):
    heard, hearing = np.concatenate([sound(2), sound(3), sound(4)])[:length], hearing_of(True)
    tiles = sound_tiles(heard, hearing)
    given = WhisperFeatureExtractor(80, chunk_length=1)(
        heard, sampling_rate=16_000, return_tensors="np", padding=True, truncation=False, pad_to_multiple_of=16_000
    )["input_features"]
    expected = given.reshape(80, -1, 100).transpose(1, 0, 2)
    assert len(tiles) == len(expected) and num_rows(length, 16_000, hearing) == 10 * len(tiles)
    for tile, window in zip(tiles, expected, strict=True):
        features, edge = features_of(tile)
        assert np.abs(features - window).max() < 5e-5 and not edge.any()


@pytest.mark.parametrize("length", [*LENGTHS, 16_001, 31_999, 32_000])
def test_windows_that_see_nothing_of_each_other(length):
    heard, hearing = np.concatenate([sound(2), sound(3)])[:length], cut_hearing()
    tiles = sound_tiles(heard, hearing)
    given = WhisperFeatureExtractor(80, chunk_length=2)(
        heard, sampling_rate=16_000, return_tensors="np", padding="max_length", return_attention_mask=True
    )
    num_frames = int(given["attention_mask"].sum())
    features = [features_of(tile) for tile in tiles]
    num_heard = sum(own.shape[1] for own, _ in features)
    assert num_frames - 2 <= num_heard <= num_frames  # a window without a row is left out
    assert all(own.shape[1] == 16 for own, _ in features[:-1]) and not any(edge.any() for _, edge in features)
    rows = ((num_frames - 1) // 2 - 1) // 2 + 1
    assert sum(hearing.rows_of(own.shape[1]) for own, _ in features) == rows == num_rows(length, 16_000, hearing)
    if tiles:
        made = np.concatenate([own for own, _ in features], 1)
        assert np.abs(made - given["input_features"][0, :, :num_heard]).max() < 5e-5
    assert longest_s(hearing) == 2


def test_windows_of_the_usual_size():
    heard, hearing = np.concatenate([sound(number) for number in range(33)]), hearing_of(True, 128, 1500)
    first, second = sound_tiles(heard, hearing)
    given = WhisperFeatureExtractor(128)(
        heard, sampling_rate=16_000, return_tensors="np", padding=True, truncation=False, pad_to_multiple_of=480_000
    )["input_features"][0]
    assert window_s(hearing) == 30 and given.shape == (128, 6000)
    assert np.abs(np.concatenate([features_of(first)[0], features_of(second)[0]], 1) - given).max() < 5e-5


def test_lengths_at_other_rates():
    assert num_rows(8000, 8000, hearing_of(False)) == 25 == num_rows(44_100, 44_100, hearing_of(False))
    assert num_rows(44_101, 44_100, hearing_of(True)) == 20


@pytest.mark.parametrize("length", [321, 5000, 7_999, 15_841, 16_000])
def test_rows_of_one_window(tmp_path_factory, length):
    made = write_qwen2_audio(tmp_path_factory.mktemp("model"))
    model, heard = load_model(made.folder, max_model_len=64), sound(5)[:length]
    [tile] = sound_tiles(heard, model.config.hearing)
    given = made.features([heard])
    with torch.inference_mode():
        [rows] = model.tile_reader(tile, torch.device("cpu"), TORCH_CPU_OPS)
        num_heard = (int(given["feature_attention_mask"].sum()) - 1) // 2 + 1
        mask = torch.zeros(1, 1, 50, 50).masked_fill(torch.arange(50) >= num_heard, -torch.inf)
        states = made.model.model.audio_tower(given["input_features"], attention_mask=mask).last_hidden_state
        expected = made.model.model.multi_modal_projector(states)[0, : num_heard // 2]
    assert rows.shape == expected.shape and np.abs((rows - expected).numpy()).max() < 2e-5


def test_rows_of_windows(tmp_path):
    made = write_voxtral(tmp_path)
    model, heard = load_model(made.folder, max_model_len=64), np.concatenate([sound(5), sound(6)])[:25_000]
    with torch.inference_mode():
        rows = [
            model.tile_reader(tile, torch.device("cpu"), TORCH_CPU_OPS)[0]
            for tile in sound_tiles(heard, model.config.hearing)
        ]
        expected = made.model.get_audio_features(**made.features([heard])).pooler_output
    assert np.abs((torch.cat(rows) - expected).numpy()).max() < 2e-5


@pytest.mark.parametrize("length", [321, 2560, 2561, 5000, 25_000, 32_000])
def test_rows_of_windows_that_see_nothing_of_each_other(tmp_path_factory, length):
    made = write_omni(tmp_path_factory.mktemp("model"))
    model, heard = load_model(made.folder, max_model_len=64), np.concatenate([sound(5), sound(6)])[:length]
    with torch.inference_mode():
        rows = [
            model.tile_reader(tile, torch.device("cpu"), TORCH_CPU_OPS)[0]
            for tile in sound_tiles(heard, model.config.hearing)
        ]
        expected = made.model.model.get_audio_features(**made.heard([heard])).last_hidden_state
    assert torch.cat(rows).shape == expected.shape and np.abs((torch.cat(rows) - expected).numpy()).max() < 2e-5
