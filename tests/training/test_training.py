"""Training, small: the loss falls, two runs write the same bytes, and what is written is a whole checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from training.batches import RowKind, RowPacker, long_document, short_document
from training.corpus.corpus import TURN_END, sample_text
from training.dense import DenseConfig
from training.tokenization import train_tokenizer
from training.train import rate_factor, save, train

KINDS = (RowKind(64, 8, short_document), RowKind(160, 1, long_document))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(sample_text(0, 400), 400)


def _config(tokenizer: Tokenizer) -> DenseConfig:
    return DenseConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
    )


def test_loss_falls_and_two_runs_write_the_same_bytes(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name in ("first", "second"):
        model, losses = train(_config(tokenizer), tokenizer, steps=20, seed=0, kinds=KINDS, log_every=0)
        save(tmp_path / name, model, tokenizer)
    assert losses[-1] < 0.75 * losses[0]
    for file in sorted((tmp_path / "first").iterdir()):
        assert file.read_bytes() == (tmp_path / "second" / file.name).read_bytes(), file.name
    other, _ = train(_config(tokenizer), tokenizer, steps=2, seed=1, kinds=KINDS, log_every=0)
    assert not torch.equal(other.model.norm.weight, model.model.norm.weight)


def test_rate_rises_and_ends_near_zero() -> None:
    factors = [rate_factor(step, 100) for step in range(100)]
    assert factors[0] == 0.5 and max(factors) == 1.0
    assert 0 < factors[-1] < 0.05


def test_rows_start_fresh_and_learn_answers_only(tokenizer: Tokenizer) -> None:
    packer = RowPacker(KINDS[0], tokenizer, "rows")
    inputs, targets, learn = packer.batch()
    assert inputs.shape == targets.shape == learn.shape == (8, 64)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert 0.1 < learn.float().mean() < 0.9
    again = RowPacker(KINDS[0], tokenizer, "rows").batch()
    assert all(torch.equal(a, b) for a, b in zip((inputs, targets, learn), again, strict=True))


def test_answers_end_with_a_learned_end_of_turn(tokenizer: Tokenizer) -> None:
    _, targets, learn = RowPacker(RowKind(64, 32, short_document), tokenizer, "ends").batch()
    ends = (targets == tokenizer.token_to_id(TURN_END)) & learn
    assert int(ends.sum()) >= 16
