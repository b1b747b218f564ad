"""Tokenizers of encoders in GGUF files: the ids of the tokenizer.json that they were written from."""

import io

import gguf
import pytest
import sentencepiece
from gguf import TokenType
from text.test_tokenizer_gguf import ODD, WORDS, parts_of, texts, trained
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from lullm.errors import ModelLoadError
from lullm.text.tokenizer import Tokenizer
from lullm.text.vocabulary.sentence_piece import _fields

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MORE = [
    "The [MASK] x",
    "a [SEP] b [CLS]",
    "x  <mask> y",
    "naïve  ÉCOLE\tÜnï",
    "x" * 120,
    "[PAD3] 한국어",
    "½ ﬁ Ⅳ　x\u0085y",
]


def write(path, arrays, **values):
    """arrays: keys of the tokenizer with arrays and how they are written; values: its other keys."""
    writer = gguf.GGUFWriter(path, "bert")
    for add, value in arrays:
        getattr(writer, f"add_{add}")(value)
    for name, value in values.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"tokenizer.ggml.{name.replace('__', '.')}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return Tokenizer.from_folder(path)


def assert_same(ours, backend, more=()):
    for text in [*texts(), *MORE, *more]:
        expected = backend.encode(text)
        assert ours.encode(text) == expected.ids, text
        assert ours.decode(expected.ids) == backend.decode(expected.ids), text
    pair, expected = (each.encode("the fox", "café!") for each in (ours.backend, backend))
    assert pair.ids == expected.ids
    return pair, expected


def word_pieces(**options):
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(**options)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=MARKS, show_progress=False)
    backend.train_from_iterator([*WORDS * 3, *ODD, "##x", "#"], trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    from tokenizers.decoders import WordPiece

    backend.decoder = WordPiece()
    return backend


def phantoms(backend):
    """The vocabulary as llama.cpp's converter writes it: '▁' begins a word, and nothing marks what continues it."""
    tokens = [backend.id_to_token(number) for number in range(backend.get_vocab_size())]
    types = [TokenType.CONTROL if token in MARKS else TokenType.NORMAL for token in tokens]
    own = [t if t in MARKS else t[2:] if t.startswith("##") else f"▁{t}" for t in tokens]
    return [("tokenizer_model", "bert"), ("tokenizer_pre", "jina-v2-en"), ("token_list", own), ("token_types", types)]


ROLES = {"seperator_token_id": 3, "unknown_token_id": 1, "padding_token_id": 0, "mask_token_id": 4}


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, {}),
        ({}, {"bos_token_id": 2, "eos_token_id": 3}),
        ({"lowercase": False}, {}),  # a vocabulary with capitals
        ({"lowercase": True, "strip_accents": False}, {"normalizer__strip_accents": False}),
        (
            {"lowercase": False, "strip_accents": True},
            {"normalizer__lowercase": False, "normalizer__strip_accents": True},
        ),
    ],
    ids=str,
)
def test_word_pieces(tmp_path, options, keys):
    """Older files name the first token [CLS], newer ones the beginning of a text; some say how texts are normalized."""
    backend = word_pieces(**options)
    roles = {"cls_token_id": 2, **ROLES} if "bos_token_id" not in keys else ROLES
    ours = write(tmp_path / "model.gguf", phantoms(backend), **roles, **keys)
    pair, expected = assert_same(ours, backend)
    assert pair.type_ids == expected.type_ids and ours.around_pair == ([2], [3], [3])
    assert ours.special_token_ids == {0, 1, 2, 3, 4} and ours.pad_token == "[PAD]"


def pieces():
    """A SentencePiece model of the unigram kind: (tokens and scores in XLM-R's order, the table of its normalizer)."""
    model = io.BytesIO()
    sentences = [*WORDS * 20, *(text for text in ODD * 3 if text.strip()), *["½ ﬁ Ⅳ x"] * 5]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=200, model_type="unigram",
        hard_vocab_limit=False, character_coverage=1.0, minloglevel=2,
    )  # fmt: skip
    fields = _fields(model.getvalue())
    own = [(piece[1][0].decode(), piece[2][0]) for piece in map(_fields, fields[1][3:])]
    first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    return [*first, *own], _fields(fields[3][0])[2][0]


UNIGRAM_ROLES = {
    "bos_token_id": 0, "eos_token_id": 2, "unknown_token_id": 3, "seperator_token_id": 2, "padding_token_id": 1,
    "add_bos_token": True, "add_eos_token": True, "add_space_prefix": True, "remove_extra_whitespaces": True,
}  # fmt: skip


@pytest.mark.parametrize("stores_mask", [False, True])
def test_unigram(tmp_path, stores_mask):
    """XLM-R's. Its mask is in no SentencePiece model: a file names its id, and its token is an unused one."""
    from transformers import XLMRobertaTokenizer

    known, table = pieces()
    size = len(known)
    golden = XLMRobertaTokenizer(vocab=[*known, ("<mask>", 0.0)], _spm_precompiled_charsmap=table)
    tokens = [*(token for token, _ in known), "<mask>" if stores_mask else f"[PAD{size}]", f"[PAD{size + 1}]"]
    types = [TokenType.CONTROL] * 3 + [TokenType.UNKNOWN] + [TokenType.NORMAL] * (size - 4)
    types += [TokenType.CONTROL if stores_mask else TokenType.UNUSED, TokenType.UNUSED]
    arrays = [
        ("tokenizer_model", "t5"), ("token_list", tokens), ("token_types", types),
        ("token_scores", [*(score for _, score in known), 0.0 if stores_mask else -10000.0, -10000.0]),
        ("precompiled_charsmap", table),
    ]  # fmt: skip
    ours = write(tmp_path / "model.gguf", arrays, **UNIGRAM_ROLES, mask_token_id=size)
    assert_same(ours, golden.backend_tokenizer, [f"[PAD{size}]", "a[PAD1]"])
    assert ours.around_pair == ([0], [2, 2], [2]) and ours.vocab_size == size + 1


def test_byte_level_tokens_of_encoders(tmp_path):
    """RoBERTa's two marks between the texts of a pair, ModernBERT's one; the mask takes the spaces before it."""
    for pre, marks, between in (
        ("roberta-bpe", ("<s>", "</s>", "<mask>"), 2),
        ("modern-bert", ("[CLS]", "[SEP]", "[MASK]"), 1),
    ):
        backend = trained(pre)
        first, last, mask = marks
        added = [AddedToken(token, special=True, normalized=False, lstrip=token == mask) for token in marks]
        backend.add_special_tokens(added)
        ids = [backend.token_to_id(token) for token in marks]
        pair = f"{first} $A {' '.join([last] * between)} $B:{2 - between} {last}:{2 - between}"
        backend.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{first} $A {last}", pair=pair, special_tokens=[(first, ids[0]), (last, ids[1])]
            ),
        ])  # fmt: skip
        tokens, kinds, merges = parts_of(backend)
        arrays = [("tokenizer_model", "gpt2"), ("tokenizer_pre", pre), ("token_list", tokens),
                  ("token_types", kinds), ("token_merges", merges)]  # fmt: skip
        roles = dict(zip(("bos_token_id", "eos_token_id", "mask_token_id"), ids, strict=True))
        found, expected = assert_same(write(tmp_path / f"{pre}.gguf", arrays, **roles), backend)
        assert found.type_ids == expected.type_ids


@pytest.mark.parametrize(
    ("tokens", "more", "reason"),
    [
        (["▁a", "▁a", "[CLS]"], [], "its tokens must be different"),
        (["▁a", "▁b", "[CLS]"], [], "one of them for unknown words"),
        (["[UNK]", "▁b", "[CLS]"], [], "no tokens around a text"),
    ],
)
def test_damaged_word_pieces(tmp_path, tokens, more, reason):
    kinds = [TokenType.CONTROL if token.startswith("[") else TokenType.NORMAL for token in tokens]
    arrays = [("tokenizer_model", "bert"), ("token_list", tokens), ("token_types", kinds), *more]
    with pytest.raises(ModelLoadError, match=reason):
        write(tmp_path / "model.gguf", arrays)


@pytest.mark.parametrize("table", [[70000], "text"], ids=["numbers", "text"])
def test_damaged_tables_of_characters(tmp_path, table):
    def add(writer):
        key = "tokenizer.ggml.precompiled_charsmap"
        return writer.add_string(key, table) if isinstance(table, str) else writer.add_array(key, table)

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "bert")
    writer.add_tokenizer_model("t5")
    writer.add_token_list(["<unk>", "a"])
    writer.add_token_scores([0.0, -1.0])
    add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match="precompiled_charsmap must be an array of bytes"):
        Tokenizer.from_folder(tmp_path / "model.gguf")


def test_a_table_that_cuts_characters_is_named(tmp_path):
    types, table = [TokenType.UNKNOWN, TokenType.NORMAL], b"\x00\x00\x00"
    arrays = [("tokenizer_model", "t5"), ("token_list", ["<unk>", "a"]), ("token_types", types)]
    with pytest.raises(ModelLoadError, match="are no tokenizer"):
        write(tmp_path / "model.gguf", [*arrays, ("token_scores", [0.0, -1.0]), ("precompiled_charsmap", table)])
