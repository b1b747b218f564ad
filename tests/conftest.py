"""Tiny random checkpoints, in the form people download them. One thread: tiny matrices are not worth two."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # no GPU: kernels are interpreted; read when triton is imported

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job, to which Ctrl-C is not sent
    signal.signal(signal.SIGINT, signal.default_int_handler)

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = ["the quick brown fox jumps over the lazy dog", "hello world, 12 34 !?", "a b c d e f g h i j k l m n o p"]


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """Commands set the level of lullm's log; a test that reads the log of INFO failed behind one that had run one."""
    log = logging.getLogger("lullm")
    level = log.level
    yield
    log.setLevel(level)


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE of about 300 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_checkpoint(folder: Path, family: str, **options: object) -> Path:
    """A random model of a family (a key of `kinds`), with weights large enough that greedy tokens vary."""
    import torch
    from transformers import (
        Gemma2Config,
        Gemma2ForCausalLM,
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    kinds = {
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
        "mistral": (MistralConfig, MistralForCausalLM),
        "gemma2": (Gemma2Config, Gemma2ForCausalLM),
        "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    }
    make_config, make_model = kinds[family]
    settings: dict[str, object] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "initializer_range": 0.3,
    }
    torch.manual_seed(0)
    model = make_model(make_config(**{**settings, **options}))
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.float32).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def qwen3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3")


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"), "llama", tie_word_embeddings=True)


@pytest.fixture(scope="session")
def mixed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of six layers the third and the sixth have full attention, the others a window of 32 tokens."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    options = {"num_hidden_layers": 6, "layer_types": kinds, "use_sliding_window": True, "sliding_window": 32}
    return write_checkpoint(tmp_path_factory.mktemp("mixed"), "qwen3", **options)
