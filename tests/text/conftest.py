"""Tiny tokenizers, trained on the spot: a byte-level BPE (as Qwen's) and a sentencepiece-like one (as Llama 2's)."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from lullm.text.tokenizer import Tokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "hello world, hello words and wording",
    "die Straße, naïve café, señor",
    "中文字符和日本語のテキスト",
    "emoji 😀 👩‍👩‍👧 🏳️‍🌈 end\n\tindent  two spaces",
] * 4


def train_byte_level() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|start|>", "<|end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(["<think>", "added é with space", AddedToken("<|中|>", normalized=False)])
    return backend


def train_sentencepiece_like() -> Backend:
    trained = Backend(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    trained.train_from_iterator(CORPUS[:3], trainer)
    data = json.loads(trained.to_str())
    vocab = data["model"]["vocab"]
    for value in range(256):
        vocab[f"<0x{value:02X}>"] = len(vocab)
    data["model"]["byte_fallback"] = True
    backend = Backend.from_str(json.dumps(data))
    # As Llama 2's file: no pre-tokenizer, the space mark comes from the normalizer.
    backend.pre_tokenizer = None
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bos_id = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos_id)])
    return backend


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(train_byte_level(), {"eos_token": "<|end|>"})


@pytest.fixture(scope="session")
def sentencepiece_like() -> Tokenizer:
    return Tokenizer(train_sentencepiece_like(), {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder's tokenizer files; tests damage them."""
    train_byte_level().save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "bos_token": None, "chat_template": "{{ messages[0].content }}{{ eos_token }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path
