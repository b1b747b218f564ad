"""The tokenizer of a GGUF file: the ids of the tokenizer.json that it was written from, whatever the text."""

import json
import random

import gguf
import pytest
import tokenizers
from kit.folder.checkpoint import CHAT_TEMPLATE
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from lullm.errors import ModelLoadError
from lullm.text.tokenizer import Tokenizer
from lullm.text.vocabulary.gguf import _CUTS

WORDS = [
    "the quick brown fox",
    "don't we'll I'M",
    "naïve café über",
    "中文字符 日本語",
    "12345 1,234.5",
    "ни хрена",
    "🙂🙃 👩‍👩‍👧",
]
ODD = [
    "", " ", "  two  spaces ", "\n\n\r\n\t tabs\n", "a" * 40, "1" * 17, "e\u0301 decomposed é", "\u200b\ufeff zero",
    "<|im_start|>user\nHi<|im_end|>", "x<|im_end|><|im_end|>y", "CamelCaseWords HTTPServer's", "//// path/to/x\n//",
    "A\u00a0B\u3000C", "\x00\x01\x7f", "😀" * 5, "ﬁ ligature ①", "مرحبا بالعالم", "İstanbul ǅ", "don'T WE'LL",
]  # fmt: skip
SPECIAL = ["<|im_start|>", "<|im_end|>"]


def texts():
    rng = random.Random(0)
    alphabet = "ab zéñ中 \n'1.,!?/🙂_-AB\t"
    return [*WORDS, *ODD, *("".join(rng.choices(alphabet, k=30)) for _ in range(60))]


def write(path, tokenizer_model, tokens, kinds, architecture="llama", **keys):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model(tokenizer_model)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    for name, value in keys.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Tokenizer.from_folder(path)


def trained(pre):
    """A byte-level tokenizer with the rules that a model of this name has."""
    cut = _CUTS[pre]
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=cut.whole_words))
    steps = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in cut.regexes]
    if cut.digit_by_digit:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not cut.regexes))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if cut.composed:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(WORDS * 3 + ODD, trainer)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return backend


def parts_of(backend):
    tokens = [backend.id_to_token(number) for number in range(backend.get_vocab_size())]
    added = backend.get_added_tokens_decoder()
    kinds = [1 if i not in added else 3 if added[i].special else 4 for i in range(len(tokens))]
    return tokens, kinds, [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]


@pytest.mark.parametrize(("architecture", "pre"), [("qwen2", "qwen2"), ("gptneox", "mpt"), ("llama", "default")])
def test_files_that_do_not_say_how_texts_are_cut(tmp_path, caplog, architecture, pre):
    """As models of their architecture, else as llama.cpp does, and the log says it."""
    tokens, kinds, merges = parts_of(trained(pre))
    with caplog.at_level("WARNING", logger="lullm"):
        silent = write(tmp_path / "a.gguf", "gpt2", tokens, kinds, architecture, token_merges=merges)
    assert f"has no tokenizer.ggml.pre: texts are cut into words as for '{pre}'" in caplog.text
    stated = write(tmp_path / "b.gguf", "gpt2", tokens, kinds, token_merges=merges, tokenizer_pre=pre)
    assert [silent.encode(text) for text in texts()] == [stated.encode(text) for text in texts()]


def test_words_of_default_and_falcon():
    """Punctuation stands alone, digits by three."""
    expected = {
        "default": ["Ġ", "123", "45", ".", "6", "Ġa", "`", "b", "==", "c"],
        "falcon": ["Ġ", "123", "45", ".", "6", "Ġa", "`", "b", "==", "c"],
    }
    for pre, words in expected.items():
        found = [word for word, _ in trained(pre).pre_tokenizer.pre_tokenize_str(" 12345.6 a`b==c")]
        assert found == words, pre


def test_words_of_kimi():
    """Chinese characters stand apart from all other letters."""
    words = ["I'm", "中文字符", "abc", "日本語", "かな", " don't", " Ünï", "ǅx", "123", "4", " //\n", "x", "/y"]
    found = trained("kimi-k2").pre_tokenizer.pre_tokenize_str("".join(words))
    assert [decoders.ByteLevel().decode([word]) for word, _ in found] == words


@pytest.mark.parametrize("pre", _CUTS)
def test_byte_level(tmp_path, pre):
    backend = trained(pre)
    tokens, kinds, merges = parts_of(backend)
    end = tokens.index("<|im_end|>")
    ours = write(
        tmp_path / "model.gguf", "gpt2", tokens, kinds, tokenizer_pre=pre, token_merges=merges, eos_token_id=end,
        add_bos_token=False, chat_template=CHAT_TEMPLATE,
    )  # fmt: skip
    for text in texts():
        assert ours.encode(text) == backend.encode(text).ids, text
        assert ours.decode(ours.encode(text)) == backend.decode(backend.encode(text).ids), text
    assert ours.eos_token_id == end and ours.eos_token == "<|im_end|>"
    assert ours.special_token_ids == {tokens.index(token) for token in SPECIAL}
    text, ids = ours.encode_conversation([{"role": "user", "content": "Hi <|im_end|>"}], {})
    assert text.startswith("<|im_start|>user\nHi <|im_end|><|im_end|>\n") and ids.count(end) == 1


def sentence_piece():
    """A vocabulary as SentencePiece's BPE writes it: merges are ranked by scores, bytes stand behind the marks."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.train_from_iterator(WORDS * 3, trainers.BpeTrainer(vocab_size=180, show_progress=False))
    pieces = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    pieces = [piece for piece, _ in sorted(pieces, key=lambda item: (len(item[0]) == 1, item[1]))]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    return tokens, kinds, [0.0] * 259 + [-float(rank) for rank in range(len(pieces))]


def test_pieces_with_merges_in_the_file(tmp_path):
    """Gemma 4's: the rules of Gemma's tokenizer.json."""
    from transformers.tokenization_utils_base import generate_merges

    tokens, kinds, scores = sentence_piece()
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = generate_merges(vocab, dict(zip(tokens, scores, strict=True)))
    expected = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    expected.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    expected.normalizer = normalizers.Replace(" ", "▁")
    expected.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    lines = [" ".join(merge) for merge in merges]
    ours = write(tmp_path / "model.gguf", "gemma4", tokens, kinds, token_merges=lines, bos_token_id=1)
    for text in texts():
        if not any(special in text for special in tokens[:3]):
            assert ours.encode(text) == [1, *expected.encode(text).ids], text
            assert ours.decode(ours.encode(text)[1:]) == expected.decode(expected.encode(text).ids), text


def llama2(vocab, merges):
    """Llama 2's tokenizer.json, with another vocabulary."""
    file = {
        "added_tokens": [
            {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for number, token in enumerate(["<unk>", "<s>", "</s>"])
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocab,
                  "merges": [list(pair) for pair in merges]},
    }  # fmt: skip
    return tokenizers.Tokenizer.from_str(json.dumps(file))


@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentence_piece(tmp_path, has_prefix):
    """Against Llama 2's tokenizer.json and transformers' Gemma tokenizer over the same vocabulary."""
    from transformers import GemmaTokenizerFast
    from transformers.tokenization_utils_base import generate_merges

    tokens, kinds, scores = sentence_piece()
    ours = write(
        tmp_path / "model.gguf", "llama", tokens, kinds, token_scores=scores, bos_token_id=1, eos_token_id=2,
        unk_token_id=0, add_space_prefix=has_prefix, add_bos_token=has_prefix,
    )  # fmt: skip
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = generate_merges(vocab, dict(zip(tokens, scores, strict=True)))
    if has_prefix:
        theirs = llama2(vocab, merges)
    else:
        theirs = GemmaTokenizerFast(
            vocab=vocab, merges=merges, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
        )._tokenizer
    for text in texts():
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False) == expected, text
        assert ours.decode(expected) == theirs.decode(expected), text
    assert ours.encode("a")[0] == 1 if has_prefix else ours.encode("a")[0] != 1


def test_what_cannot_be_read_is_named(tmp_path):
    tokens, kinds, merges = parts_of(trained("gpt-2"))
    path = tmp_path / "model.gguf"
    with pytest.raises(ModelLoadError, match=r"tokenizer.ggml.pre 'chameleon' is not supported, only .*qwen2"):
        write(path, "gpt2", tokens, kinds, tokenizer_pre="chameleon", token_merges=merges)
    with pytest.raises(ModelLoadError, match="tokenizer.ggml.model 'rwkv' is not supported, only gpt2, llama, gemma4"):
        write(path, "rwkv", tokens, kinds)
    with pytest.raises(ModelLoadError, match="merges are no tokenizer"):
        write(path, "gpt2", tokens, kinds, token_merges=["no such", *merges])
    with pytest.raises(ModelLoadError, match="'nospace' is no pair"):
        write(path, "gpt2", tokens, kinds, token_merges=["nospace"])
    with pytest.raises(ModelLoadError, match="token_type must be an array, as long as the vocabulary"):
        write(path, "gpt2", tokens, kinds[1:], token_merges=merges)
    with pytest.raises(ModelLoadError, match="scores must be an array"):
        write(path, "llama", tokens, kinds)
    with pytest.raises(ModelLoadError, match="model.gguf has longer tokens than any known tokenizer"):
        write(path, "llama", [*tokens, "a" * 40_000], [*kinds, 1], token_scores=[0.0] * (len(tokens) + 1))
    with pytest.raises(ModelLoadError, match="eos_token_id 99999 is not in the vocabulary"):
        write(path, "gpt2", tokens, kinds, token_merges=merges, eos_token_id=99999)
