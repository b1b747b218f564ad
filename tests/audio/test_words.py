"""Single words and their times: transformers' path through attention, and its words of tokens."""

import random

import numpy as np
import pytest
from kit.audio.checkpoint import TEXT_IDS, TransformersWords, write_timed_whisper

from lullm.audio.transcript.alignment import token_rows
from lullm.audio.transcript.spoken import has_spaces, word_parts
from lullm.text.tokenizer import Tokenizer

TEXTS = [
    " Hello, world! It's 3.50 - no: (four) [five]...",
    " She said \"yes\" and 'no', ¿por qué? ¡Olé!",
    "没有空格。对吗？是的、好！",
    "日本語のテキスト、とスペース space 🙂🙃!",
    " ",
    "?!",
    "",
]


def golden_rows(weights, width):
    """The row of each token, by transformers' functions for one sound."""
    import torch
    from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

    values = torch.from_numpy(weights).permute(1, 0, 2)[None]
    std, mean = torch.std(values, dim=-2, keepdim=True, unbiased=False), torch.mean(values, dim=-2, keepdim=True)
    matrix = _median_filter((values - mean) / std, width).mean(dim=1)[0]
    tokens, rows = _dynamic_time_warping(-matrix.double().numpy())
    return rows[np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)].tolist()


@pytest.mark.parametrize("num_tokens", [4, 7, 40])  # the numbers of two are all 1 or -1, and rounding decides
@pytest.mark.parametrize(("num_rows", "width"), [(1, 7), (3, 7), (4, 7), (60, 7), (150, 1), (33, 3)])
def test_rows_as_transformers(num_tokens, num_rows, width):
    noise = np.random.default_rng(num_tokens * num_rows)
    for scale in (1.0, 8.0):
        scores = noise.normal(size=(num_tokens, 3, num_rows + 5)) * scale
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        weights = weights[:, :, :num_rows].astype(np.float32)  # the rest of the window is silent
        found = token_rows(weights, width)
        assert found == golden_rows(weights, width) and len(found) == num_tokens and found == sorted(found)


def test_a_diagonal_is_followed():
    weights = np.full((10, 2, 100), 0.001, np.float32)
    for token in range(10):
        weights[token, :, 10 * token : 10 * token + 10] = 0.1
    assert token_rows(weights, 7) == pytest.approx([10 * token for token in range(10)], abs=1)


def test_rows_that_tell_nothing():
    """One token has no deviation, nor have rows to which nobody attends; transformers' numbers are NaN there."""
    weights = np.random.default_rng(1).random((1, 2, 20), np.float32)
    assert token_rows(weights, 7) == [0]
    weights = np.random.default_rng(1).random((4, 2, 20), np.float32)
    weights[:, :, 5:] = 0.0
    found = token_rows(weights, 7)
    assert found[0] == 0 and found == sorted(found) and found[-1] < 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_timed_whisper(tmp_path_factory.mktemp("whisper")).folder


@pytest.mark.parametrize(("code", "name"), [("en", "english"), ("zh", "chinese"), ("yue", "cantonese")])
def test_words_as_transformers(folder, code, name):
    """Texts of several scripts, parts of characters among them, and tokens at random."""
    tokenizer, golden = Tokenizer.from_folder(folder), TransformersWords(folder)
    chance = random.Random(3)
    lists = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    lists += [ids[: chance.randrange(1, len(ids))] for ids in lists if len(ids) > 1]
    lists += [chance.choices(range(TEXT_IDS), k=chance.randrange(1, 30)) for _ in range(200)]
    for ids in lists:
        parts = word_parts(ids, tokenizer.decode, has_spaces(code))
        times = [(number, number + 1) for number in range(len(ids))]
        assert [(part.text, part.first, part.last + 1) for part in parts] == golden.words(ids, times, name)
    english = word_parts(lists[0], tokenizer.decode, True)
    assert [part.text for part in english[:2]] == [" Hello,", " world!"]
