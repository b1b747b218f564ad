"""Folders without a tokenizer.json: SentencePiece's tokenizer.model and Mistral's tekken.json, against references."""

import base64
import json
import random

import pytest
import sentencepiece

from lullm.errors import ModelLoadError
from lullm.text.tokenizer import Tokenizer
from lullm.text.vocabulary import folder as folder_reader

TEXTS = [
    "Hello world",
    "  two  spaces and a\nline",
    "déjà vu, 12345 — 你好 🙂",
    "the the there then",
    "",
    "x",
]
CORPUS = ["the quick brown fox jumps over the lazy dog", "hello world, hello there", "numbers 1 2 3 12 123"] * 20


def train(folder, **options):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_prefix=str(folder / "tokenizer"), minloglevel=2, **options
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


LLAMA = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "bpe", "vocab_size": 340, **LLAMA},
        {"model_type": "bpe", "vocab_size": 340, **LLAMA, "add_dummy_prefix": False},
        {"model_type": "bpe", "vocab_size": 80},
        {"model_type": "unigram", "vocab_size": 296, **LLAMA},
        {"model_type": "unigram", "vocab_size": 40, "pad_id": 3},
        {"model_type": "unigram", "vocab_size": 297, **LLAMA, "user_defined_symbols": ["[INST]"]},
    ],
    ids=str,
)
def test_sentence_piece(tmp_path, options):
    reference = train(tmp_path, **options)
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == reference.encode(text), text
        if options.get("byte_fallback"):
            assert tokenizer.decode(ids) == reference.decode(ids) == text
    starts = options["model_type"] == "bpe"
    assert tokenizer.encode("x")[: int(starts)] == ([reference.bos_id()] if starts else [])
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == ("<s>", "</s>", "<unk>")
    assert tokenizer.pad_token == ("<pad>" if "pad_id" in options else None)
    assert tokenizer.vocab_size == len(reference)


def test_the_config_says_what_stands_around(tmp_path):
    reference = train(tmp_path, model_type="bpe", vocab_size=340, **LLAMA)
    config = {"add_bos_token": False, "add_eos_token": True, "chat_template": "{{ messages[0].content }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("hello") == [*reference.encode("hello"), reference.eos_id()]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False) == "hello"


UNUSED = [f"[UNUSED_TOKEN_{number}]" for number in range(4)]


@pytest.mark.parametrize("kind", ["user_defined_symbols", "control_symbols"])
def test_pieces_that_the_config_renames(tmp_path, kind):
    """InternLM2, whose class comes with its checkpoint: <|im_start|> has the id of a piece of another name."""
    reference = train(tmp_path, model_type="bpe", vocab_size=344, **LLAMA, **{kind: UNUSED})
    start, end = (reference.piece_to_id(piece) for piece in UNUSED[2:])
    entries = {
        str(start): {"content": "<|im_start|>", "special": True},
        str(end): {"content": "<|im_end|>", "special": True},
        "1": {"content": "<s>", "special": True},
    }
    config = {
        "tokenizer_class": "InternLM2Tokenizer", "added_tokens_decoder": entries,
        "auto_map": {"AutoTokenizer": ["tokenization_internlm2.InternLM2Tokenizer", None]},
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "chat_template": "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>"
        "{% endfor %}",
    }  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    text = "<|im_start|>user\nhello the fox<|im_end|>"
    ids = [start, *reference.encode("user\nhello the fox"), end]
    assert tokenizer.encode(text, add_special_tokens=False) == ids
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello the fox"}]) == [1, *ids]
    assert tokenizer.convert_ids_to_tokens([start, end]) == ["<|im_start|>", "<|im_end|>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\nhello the fox"
    assert tokenizer.vocab_size == len(reference)
    for text in TEXTS:
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text), text


def test_tokens_that_only_chatglm_knows(tmp_path):
    """They follow the pieces of ChatGLM3's tokenizer.model; its code alone says so."""
    reference = train(tmp_path, model_type="bpe", vocab_size=340, **LLAMA)
    template = "[gMASK]sop<|{{ messages[0].role }}|>\n {{ messages[0].content }}<|assistant|>"
    declared = {str(340 + at): {"content": token} for at, token in ((1, "[gMASK]"), (3, "sop"), (6, "<|user|>"))}
    config = {"tokenizer_class": "ChatGLMTokenizer", "added_tokens_decoder": declared, "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    words = reference.encode("hello sophie")
    assert tokenizer.encode("hello sophie") == [341, 343, *words], "no word is cut"
    found = tokenizer.apply_chat_template([{"role": "user", "content": "hello sophie"}])
    assert found == [341, 343, 346, *reference.encode("\n hello sophie"), 347]
    assert tokenizer.decode(found, skip_special_tokens=True).split()[-2:] == ["hello", "sophie"]


@pytest.mark.parametrize(
    "content", [b"", b"not a model", b"\x0a\xff\xff\xff\xff\x0f", b"IQ== 0\nIg== 1\n", b"\xff" * 40]
)
def test_other_files_are_no_sentence_piece(tmp_path, content):
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(ModelLoadError, match="tokenizer.model"):
        Tokenizer.from_folder(tmp_path)


def test_other_kinds_are_refused(tmp_path):
    train(tmp_path, model_type="char", vocab_size=40)
    with pytest.raises(ModelLoadError, match="only BPE and unigram"):
        Tokenizer.from_folder(tmp_path)


PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = [" t", "he", " the", "ll", "hell", "hello", " th", "ere", "é", "你", "wor", "world", "<s", "<s>"]


def tekken(**changes):
    words = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS]
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
        for rank, word in enumerate([*words, b"cut off"])
    ]
    config = {
        "pattern": PATTERN, "num_vocab_tokens": len(vocab), "default_vocab_size": len(words) + 30,
        "default_num_special_tokens": 30, "version": "v3",
    }  # fmt: skip
    return {"config": config | changes, "vocab": vocab}, words


def joined(word, ranks):
    """tiktoken's rule: of all neighbours the pair that makes the first token, again and again."""
    if word in ranks:
        return [ranks[word]]
    parts = [bytes([byte]) for byte in word]
    while True:
        pairs = [(ranks[parts[at] + parts[at + 1]], at) for at in range(len(parts) - 1)
                 if parts[at] + parts[at + 1] in ranks]  # fmt: skip
        if not pairs:
            return [ranks[part] for part in parts]
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_tekken(tmp_path):
    data, words = tekken()
    (tmp_path / "tekken.json").write_text(json.dumps(data))
    tokenizer = Tokenizer.from_folder(tmp_path)
    ranks = {word: rank + 30 for rank, word in enumerate(words) if word != b"<s>"}
    rng = random.Random(0)
    alphabet = "helotrwd "
    texts = [*TEXTS, *("".join(rng.choices(alphabet, k=30)) for _ in range(50))]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert ids == [token for word in cut(text) for token in joined(word.encode(), ranks)], text
    assert tokenizer.encode("hello") == [1, 30 + 256 + WORDS.index("hello")]
    assert tokenizer.encode("[INST]</s>", add_special_tokens=False) == [3, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 11)
    assert tokenizer.convert_ids_to_tokens(29) == "<SPECIAL_29>"


def cut(text):
    """The words of the pattern, by the library's own regular expressions."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    return [word for word, _ in Split(Regex(PATTERN), "isolated").pre_tokenize_str(text)]


def test_tekken_names_its_special_tokens(tmp_path):
    data, _ = tekken()
    data["special_tokens"] = [{"rank": rank, "token_str": token, "is_control": True} for rank, token in
                              enumerate(["<unk>", "<s>", "</s>", "[THINK]"])]  # fmt: skip
    (tmp_path / "tekken.json").write_text(json.dumps(data))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("[THINK]", add_special_tokens=False) == [3]
    assert tokenizer.pad_token is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "("}, "no regular expression"),
        ({"default_vocab_size": 10**6}, "its vocabulary must be"),
        ({"default_num_special_tokens": 0}, "default_num_special_tokens must be a positive integer"),
        ({"default_num_special_tokens": 1 << 24}, "default_num_special_tokens must be a positive integer up to 65536"),
        ({"pattern": None}, "damaged"),
    ],
)
def test_a_damaged_tekken_is_named(tmp_path, changes, message):
    (tmp_path / "tekken.json").write_text(json.dumps(tekken(**changes)[0]))
    with pytest.raises(ModelLoadError, match=f"tekken.json.*{message}"):
        Tokenizer.from_folder(tmp_path)


def test_special_tokens_beyond_their_number(tmp_path):
    """It was called a regular expression that is none."""
    data, _ = tekken()
    data["special_tokens"] = [{"rank": 30, "token_str": "<s>", "is_control": True}]
    (tmp_path / "tekken.json").write_text(json.dumps(data))
    with pytest.raises(ModelLoadError, match="tekken.json is damaged: IndexError"):
        Tokenizer.from_folder(tmp_path)


def test_endless_tokens_are_refused(tmp_path):
    """Their pairs took the square of their length: a token of 16 MB was a hang."""
    data, _ = tekken()
    data["vocab"][-2]["token_bytes"] = base64.b64encode(b"a" * 40_000).decode()
    (tmp_path / "tekken.json").write_text(json.dumps(data))
    with pytest.raises(ModelLoadError, match="tekken.json: its vocabulary has longer tokens than any known"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tekken.json").unlink()
    piece = b"\x0a\xc0\xb8\x02" + b"a" * 40_000
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\xc4\xb8\x02" + piece)
    with pytest.raises(ModelLoadError, match="tokenizer.model: its vocabulary has longer tokens than any known"):
        Tokenizer.from_folder(tmp_path)


def test_words_of_an_unknown_class_are_refused_with_what_to_do(tmp_path):
    """The error said "no tokenizer.json" and no more."""
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="vocab.json and no tokenizer.json.*save_pretrained.*tokenizer=FOLDER"):
        Tokenizer.from_folder(tmp_path)


def test_a_lack_of_memory_is_no_fault_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(folder_reader, "read_text", raises_memory_error)
    with pytest.raises(MemoryError):
        Tokenizer.from_folder(tmp_path)


def raises_memory_error(*_):
    raise MemoryError


def test_the_template_of_a_processor(tmp_path):
    """Folders of models that see had it in a file of its own, and nowhere else."""
    train(tmp_path, model_type="bpe", vocab_size=340, **LLAMA)
    path = tmp_path / "chat_template.json"
    path.write_text(json.dumps({"chat_template": "P{{ messages[0].content }}"}))
    messages = [{"role": "user", "content": "hello"}]
    assert Tokenizer.from_folder(tmp_path).apply_chat_template(messages, tokenize=False) == "Phello"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "T"}))
    assert Tokenizer.from_folder(tmp_path).apply_chat_template(messages, tokenize=False) == "T"
    path.write_text(json.dumps({"chat_template": 7}))
    with pytest.raises(ModelLoadError, match="chat_template.json: chat_template must be a string or a list"):
        Tokenizer.from_folder(tmp_path)
