import random
import time
from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from lullm.errors import ModelLoadError
from lullm.text.detokenizer import IncrementalDetokenizer
from lullm.text.tokenizer import Tokenizer

TEXTS = [
    "hello 😀 world",
    "👩‍👩‍👧🏳️‍🌈",
    "中文 mixed 日本語",
    " leading",
    "a\n\n  b\t",
    "Straße ñ",
    "�",
    "\x00\x7f",
    "𝔘𝔫𝔦",
]


def pieces(ids: list[int], rng: random.Random) -> Iterator[list[int]]:
    start = 0
    while start < len(ids):
        end = start + rng.choice([0, 1, 1, 1, 2, 5])
        yield ids[start:end]
        start = end


def streamed(detokenizer: IncrementalDetokenizer, ids: list[int], rng: random.Random) -> str:
    text = "".join(detokenizer.append(piece) for piece in pieces(ids, rng))
    return text + detokenizer.finish()


def test_random_ids_give_what_decode_gives(byte_level: Tokenizer) -> None:
    rng = random.Random(1)
    for _ in range(3000):
        ids = [rng.randrange(byte_level.vocab_size + 5) for _ in range(rng.randrange(30))]
        skip = rng.random() < 0.5
        got = streamed(IncrementalDetokenizer(byte_level, skip), ids, rng)
        assert got == byte_level.decode(ids, skip_special_tokens=skip), ids


def test_random_bytes_give_what_decode_gives(byte_level: Tokenizer) -> None:
    # Only tokens of one byte, mostly of broken characters: every way UTF-8 can go wrong.
    single = [i for i in range(byte_level.vocab_size) if len(byte_level.token_bytes.inner(i)) == 1]
    assert len({byte_level.token_bytes.inner(i) for i in single}) == 256
    high = [i for i in single if byte_level.token_bytes.inner(i) >= b"\x80"]
    rng = random.Random(2)
    for _ in range(3000):
        ids = rng.choices(high + rng.choices(single, k=20), k=rng.randrange(25))
        assert streamed(IncrementalDetokenizer(byte_level), ids, rng) == byte_level.decode(ids), ids


def test_the_prompt_changes_nothing_at_byte_level(byte_level: Tokenizer) -> None:
    ids = byte_level.encode(" hello", add_special_tokens=False)
    prompt = byte_level.encode("the", add_special_tokens=False)
    assert streamed(IncrementalDetokenizer(byte_level, prompt_token_ids=prompt), ids, random.Random(0)) == " hello"


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece_like"])
@pytest.mark.parametrize("text", TEXTS)
def test_no_piece_holds_half_a_character(name: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    detokenizer = IncrementalDetokenizer(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    out = [detokenizer.append([token_id]) for token_id in ids]
    assert "".join(out) == text  # finish() is not needed: nothing is held back behind a whole character
    assert detokenizer.finish() == ""
    if "�" not in text:
        assert not any("�" in piece for piece in out)


def test_each_character_comes_with_its_last_byte(byte_level: Tokenizer) -> None:
    by_byte = {byte_level.token_bytes.inner(i): i for i in range(byte_level.vocab_size)}
    detokenizer = IncrementalDetokenizer(byte_level)
    out = [detokenizer.append([by_byte[bytes([value])]]) for value in "é😀".encode()]
    assert out == ["", "é", "", "", "", "😀"]


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece_like"])
def test_a_run_of_broken_bytes_is_neither_held_back_nor_slow(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    broken = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes.inner(i) == b"\xe4")
    detokenizer = IncrementalDetokenizer(tokenizer)
    started = time.perf_counter()
    num_shown = 0
    for num_tokens in range(1, 50_001):
        num_shown += len(detokenizer.append([broken]))
        assert num_shown >= num_tokens - 1
    assert time.perf_counter() - started < 5  # O(n^2) takes minutes
    assert num_shown + len(detokenizer.finish()) == 50_000


def test_finish_shows_the_unfinished_character_once(byte_level: Tokenizer, sentencepiece_like: Tokenizer) -> None:
    for tokenizer in (byte_level, sentencepiece_like):
        ids = tokenizer.encode("a😀", add_special_tokens=False)
        by_byte = {tokenizer.token_bytes.inner(i): i for i in range(tokenizer.vocab_size)}
        ids = tokenizer.encode("a", add_special_tokens=False) + [by_byte[b"\xf0"], by_byte[b"\x9f"]]
        detokenizer = IncrementalDetokenizer(tokenizer)
        assert detokenizer.append(ids) == "a"
        assert "a" + detokenizer.finish() == tokenizer.decode(ids)
        assert detokenizer.finish() == ""


def test_sentencepiece_text_gives_what_decode_gives(sentencepiece_like: Tokenizer) -> None:
    rng = random.Random(3)
    words = ["the", " ", "fox", "中", "😀", "é", "\n", "  ", "zz", "<0x41>", "▁"]
    for _ in range(2000):
        text = "".join(rng.choices(words, k=rng.randrange(12)))
        ids = sentencepiece_like.encode(text, add_special_tokens=rng.random() < 0.5)
        got = streamed(IncrementalDetokenizer(sentencepiece_like), ids, rng)
        assert got == sentencepiece_like.decode(ids), text


def test_sentencepiece_random_tokens_without_broken_bytes(sentencepiece_like: Tokenizer) -> None:
    rng = random.Random(4)
    ascii_only = [
        i for i in range(sentencepiece_like.vocab_size) if max(sentencepiece_like.token_bytes.inner(i)) < 0x80
    ]
    assert {" ", "\n"} <= {sentencepiece_like.decode_token(i) for i in ascii_only}
    for _ in range(2000):
        ids = rng.choices(ascii_only, k=rng.randrange(12))
        skip = rng.random() < 0.5
        got = streamed(IncrementalDetokenizer(sentencepiece_like, skip), ids, rng)
        assert got == sentencepiece_like.decode(ids, skip_special_tokens=skip), ids


def test_sentencepiece_broken_bytes_alone_give_what_decode_gives(sentencepiece_like: Tokenizer) -> None:
    rng = random.Random(5)
    leads = [sentencepiece_like.backend.token_to_id(f"<0x{value:02X}>") for value in (0xC3, 0xE4, 0xF0, 0xFF)]
    space = sentencepiece_like.encode("the", add_special_tokens=False)
    for _ in range(500):
        ids = space + rng.choices(leads, k=rng.randrange(1, 6)) + space
        assert streamed(IncrementalDetokenizer(sentencepiece_like), ids, rng) == sentencepiece_like.decode(ids), ids


@pytest.mark.parametrize(
    ("prompt", "expected"), [(None, "the fox"), ([], "the fox"), (["<s>"], "the fox"), (["<s>", "▁the"], " the fox")]
)
def test_leading_space_follows_the_prompt(
    sentencepiece_like: Tokenizer, prompt: list[str] | None, expected: str
) -> None:
    to_id = sentencepiece_like.backend.token_to_id
    prompt_ids = None if prompt is None else [to_id(token) for token in prompt]
    ids = sentencepiece_like.encode("the fox", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(sentencepiece_like, prompt_token_ids=prompt_ids)
    assert streamed(detokenizer, ids, random.Random(0)) == expected


def test_a_special_token_that_is_shown_counts_as_the_beginning(sentencepiece_like: Tokenizer) -> None:
    ids = sentencepiece_like.encode("the fox")
    for skip, expected in ((True, "the fox"), (False, "<s> the fox")):
        got = streamed(IncrementalDetokenizer(sentencepiece_like, skip), ids, random.Random(0))
        assert got == expected == sentencepiece_like.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.Metaspace(), decoders.Fuse()])
def test_other_decoders_that_print_token_by_token(decoder: decoders.Decoder | None) -> None:
    vocab = ["the", "##ing", "▁fox", ".", "dog", "a"]
    backend = Backend(models.WordLevel({token: i for i, token in enumerate(vocab)}))
    if decoder is not None:
        backend.decoder = decoder
    tokenizer = Tokenizer(backend)
    rng = random.Random(6)
    for _ in range(300):
        ids = [rng.randrange(len(vocab)) for _ in range(rng.randrange(8))]
        assert streamed(IncrementalDetokenizer(tokenizer), ids, rng) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.BPEDecoder(),
        decoders.CTC(),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.Replace("a", "b"), decoders.ByteLevel()]),
    ],
)
def test_decoders_that_look_ahead_are_refused(decoder: decoders.Decoder) -> None:
    backend = Backend(models.WordLevel({"a": 0}))
    backend.decoder = decoder
    with pytest.raises(ModelLoadError, match="cannot be streamed"):
        Tokenizer(backend)
