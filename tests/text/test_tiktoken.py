"""Vocabularies in tiktoken's file format: Qwen 1, Kimi and the first GLM-4-9B, with the ids of the tiktoken package."""

import base64
import itertools
import json
import random

import pytest
from text.tiktoken_ids import FILE

from lullm.errors import ModelLoadError
from lullm.text.tokenizer import Tokenizer

GOLDEN = json.loads(FILE.read_text())
COUNT = len(GOLDEN["ranks"])
FILES = {
    "QWenTokenizer": "qwen.tiktoken", "TikTokenTokenizer": "tiktoken.model", "ChatGLM4Tokenizer": "tokenizer.model",
}  # fmt: skip
KIMI = {
    "bos_token": "[BOS]", "eos_token": "[EOS]",
    "added_tokens_decoder": {
        str(COUNT): {"content": "[BOS]", "special": True}, str(COUNT + 1): {"content": "[EOS]", "special": True},
        str(COUNT + 11): {"content": "<|tool_call_begin|>", "special": False},
    },
    "chat_template": "{% for m in messages %}<|im_user|>{{ m.content }}{% endfor %}",
}  # fmt: skip


def write(folder, name, ranks=GOLDEN["ranks"], **config):
    (folder / FILES[name]).write_text("".join(f"{token} {rank}\n" for rank, token in enumerate(ranks)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name} | config))
    return folder


@pytest.mark.parametrize("name", FILES)
def test_ids_of_tiktoken(tmp_path, name):
    tokenizer = Tokenizer.from_folder(write(tmp_path, name))
    for text, ids in zip(GOLDEN["texts"], GOLDEN["ids"][name], strict=True):
        found = tokenizer.encode(text, add_special_tokens=False)
        assert found == ids, text
        if name != "QWenTokenizer":  # it composes characters
            assert tokenizer.decode(found) == text


@pytest.mark.parametrize("seed", range(6))
def test_any_vocabulary(tmp_path, seed):
    """Tokens that no training gave, in any order: ids are those of joining the pair that makes the earliest token."""
    rng = random.Random(seed)
    words = {"".join(rng.choices("abc", k=rng.randrange(2, 6))).encode() for _ in range(60)}
    ranks = [bytes([byte]) for byte in range(256)] + rng.sample(sorted(words), len(words))
    tokenizer = Tokenizer.from_folder(
        write(tmp_path, "QWenTokenizer", [base64.b64encode(token).decode() for token in ranks])
    )
    known = {token: rank for rank, token in enumerate(ranks)}
    texts = ["".join(letters) for size in range(1, 7) for letters in itertools.product("abc", repeat=size)]
    texts += ["".join(rng.choices("abc", k=30)) for _ in range(300)]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids == joined(text.encode(), known), text


def joined(word, ranks):
    if word in ranks:
        return [ranks[word]]
    parts = [bytes([byte]) for byte in word]
    while True:
        pairs = [(ranks[left + right], at) for at, (left, right) in enumerate(itertools.pairwise(parts))
                 if left + right in ranks]  # fmt: skip
        if not pairs:
            return [ranks[part] for part in parts]
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_qwen(tmp_path):
    tokenizer = Tokenizer.from_folder(write(tmp_path, "QWenTokenizer"))
    assert len(tokenizer) == tokenizer.vocab_size == COUNT + 208
    found = tokenizer.encode("<|endoftext|><|im_start|><|im_end|><|extra_0|><|extra_204|>")
    assert found == [COUNT, COUNT + 1, COUNT + 2, COUNT + 3, COUNT + 207]
    assert set(found) <= tokenizer.special_token_ids and tokenizer.eos_token_id == COUNT
    assert tokenizer.encode("cafe\u0301") == tokenizer.encode("café")
    assert tokenizer.chat_template is None, "a base model has no conversations"


def test_conversations_of_qwen(tmp_path):
    """No file has their form; generation_config.json says whether a model knows it."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"chat_format": "chatml"}))
    tokenizer = Tokenizer.from_folder(write(tmp_path, "QWenTokenizer"))
    user = {"role": "user", "content": "Hi"}
    system = {"role": "system", "content": "Be brief."}
    found = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
    assert found == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    answered = [system, user, {"role": "assistant", "content": "Hello."}]
    assert tokenizer.apply_chat_template(answered, tokenize=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
    )
    assert tokenizer.eos_token == "<|im_end|>", "a reply ends there"


def test_glm4(tmp_path):
    tokenizer = Tokenizer.from_folder(write(tmp_path, "ChatGLM4Tokenizer"))
    assert tokenizer.encode("x") == [COUNT + 2, COUNT + 4, *tokenizer.encode("x", add_special_tokens=False)]
    assert tokenizer.encode("<|user|>", add_special_tokens=False) == [COUNT + 7]
    assert (tokenizer.eos_token_id, tokenizer.vocab_size) == (COUNT, COUNT + 14)


def test_kimi(tmp_path):
    tokenizer = Tokenizer.from_folder(write(tmp_path, "TikTokenTokenizer", **KIMI))
    assert tokenizer.encode("[BOS]x") == [COUNT, *tokenizer.encode("x")]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (COUNT, COUNT + 1)
    assert tokenizer.vocab_size == COUNT + 256
    assert tokenizer.encode(f"<|reserved_token_{COUNT + 2}|>") == [COUNT + 2]
    called = tokenizer.encode("<|tool_call_begin|>")
    assert called == [COUNT + 11]
    assert tokenizer.decode([COUNT + 1, *called]) == "<|tool_call_begin|>", "what is no special token stays"


def test_a_file_name_tells_the_class(tmp_path):
    write(tmp_path, "QWenTokenizer")
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.from_folder(tmp_path).encode("<|im_end|>") == [COUNT + 2]


@pytest.mark.parametrize("name", ["other.tiktoken", "tokenizer.model", "qwen.tiktoken"])
def test_other_classes_are_refused_with_what_to_do(tmp_path, name):
    (tmp_path / name).write_text("IQ== 0\n")
    if name == "qwen.tiktoken":
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Emu3Tokenizer"}))
    with pytest.raises(ModelLoadError, match=f"{name} is a vocabulary.*one of QWenTok.*save_pretr.*tokenizer=FOLDER"):
        Tokenizer.from_folder(tmp_path)


def test_more_tokens_in_another_file_are_refused(tmp_path):
    write(tmp_path, "QWenTokenizer", extra_vocab_file="extra.tiktoken")
    with pytest.raises(ModelLoadError, match="extra_vocab_file .*is not supported"):
        Tokenizer.from_folder(tmp_path)


DAMAGED = {
    "no number": "IQ== x\n",
    "no base64": "I?== 0\n",
    "three parts": "IQ== 0 1\n",
    "twice": "IQ== 0\nIQ== 1\n",
    "no bytes": "IQ== 0\nIg== 1\n",
    "gap": "".join(f"{token} {2 * rank}\n" for rank, token in enumerate(GOLDEN["ranks"])),
    "endless": "".join(f"{token} {rank}\n" for rank, token in enumerate(GOLDEN["ranks"]))
    + f"{base64.b64encode(b'a' * 40_000).decode()} {COUNT}\n",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "qwen.tiktoken").write_text(content)
    with pytest.raises(ModelLoadError, match=r"qwen\.tiktoken (is damaged|has longer tokens)"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("declared", [[], {str(COUNT): {}}, {str(COUNT): 7}, {str(COUNT): {"content": 7}}], ids=str)
def test_damaged_tokens_of_kimi_are_named(tmp_path, declared):
    write(tmp_path, "TikTokenTokenizer", **KIMI | {"added_tokens_decoder": declared or [1]})
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json: "):
        Tokenizer.from_folder(tmp_path)
