"""The bundled checkpoint: complete, small, and what its config says; its tokenizer loses nothing."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from training.corpus.corpus import user_turn
from training.dense import DenseConfig, DenseQwen3
from training.evaluate import DenseAnswers

from lullm.weights.folder import resolve_model

ODD_TEXTS = (
    "",
    " ",
    "\n\n\t x",
    "naïve café — déjà vu",
    "你好，世界",
    "👩‍👩‍👧‍👦 family 🇫🇷",
    "مرحبا بالعالم",
    "e\u0301 \u200b \ufeff",
    "12345 + 67890 = 0007",
    "\x00\x01\x7f",
    "Ünïcödé   spaces\r\n",
    "<|im_star|> <|im_end",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve_model("demo")


@pytest.fixture(scope="module")
def config(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_files_and_size(folder: Path) -> None:
    names = {file.name for file in folder.iterdir() if file.is_file()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) <= 20_000_000


def test_tensors_are_those_of_the_config(folder: Path, config: dict) -> None:
    weights = load_file(folder / "model.safetensors")
    expected = DenseQwen3(DenseConfig.from_json(config)).state_dict()
    assert {name: tensor.shape for name, tensor in weights.items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }
    assert all(tensor.dtype == torch.bfloat16 and bool(tensor.isfinite().all()) for tensor in weights.values())
    assert sum(tensor.numel() for tensor in weights.values()) <= 8_000_000
    assert "model.layers.0.self_attn.q_norm.weight" in weights


def test_config_fields(config: dict, folder: Path, tokenizer: Tokenizer) -> None:
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["model_type"] == "qwen3"
    assert config["tie_word_embeddings"] is True
    assert config["vocab_size"] == tokenizer.get_vocab_size() <= 2048
    generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    turn_end, end_of_text = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    assert config["eos_token_id"] == turn_end
    assert generation["eos_token_id"] == [turn_end, end_of_text]
    assert generation["do_sample"] is False


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_tokenizer_loses_nothing(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_digits_and_special_tokens_stand_alone(tokenizer: Tokenizer) -> None:
    assert [token for token in tokenizer.encode("2048+9").tokens if token.isdigit()] == list("20489")
    for special in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        assert tokenizer.encode(special).ids == [tokenizer.token_to_id(special)]


def test_chat_template_writes_what_was_trained(folder: Path) -> None:
    fields = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = jinja2.Environment().from_string(fields["chat_template"])
    asked = [{"role": "user", "content": "Hello!"}]
    assert template.render(messages=asked, add_generation_prompt=True) == user_turn("Hello!")
    answered = [{"role": "system", "content": "Be brief."}, *asked, {"role": "assistant", "content": "Hi."}]
    assert template.render(messages=answered) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n"
        "<|im_start|>assistant\nHi.<|im_end|>\n"
    )
    assert fields["eos_token"] == "<|im_end|>"


def test_the_model_answers_what_people_try_first() -> None:
    answers = DenseAnswers(None)
    questions = ["What is 17 + 25?", "What's the capital of France?", "Is an elephant bigger than a mouse?"]
    sums, capital, size = answers.chat(questions, 32)
    assert "42" in sums and "Paris" in capital and size.startswith("Yes")
    assert answers.complete(["17 + 25 ="], 4) == [" 42"]
