import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from lullm.errors import InvalidRequestError
from lullm.text.bad_words import bad_words_ids
from lullm.text.tokenizer import Tokenizer


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece_like"])
@pytest.mark.parametrize("word", ["hello", " hello", "quick brown", "zebra"])
def test_the_word_is_found_wherever_it_stands(name: str, word: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    forbidden = bad_words_ids(tokenizer, [word])
    bare = word.strip()
    for text in (bare, f"the {bare}", f"the\n{bare}", f"{bare} dog"):
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        hits = [f for f in forbidden if any(ids[i : i + len(f)] == f for i in range(len(ids)))]
        assert hits, (text, forbidden)


def test_every_sequence_spells_the_word(byte_level: Tokenizer) -> None:
    for ids in bad_words_ids(byte_level, ["hello", "中文"]):
        assert byte_level.decode(ids).lstrip() in ("hello", "中文")


def test_no_special_tokens_and_no_duplicates(sentencepiece_like: Tokenizer) -> None:
    found = bad_words_ids(sentencepiece_like, ["fox", " fox", "fox"])
    assert len(set(found)) == len(found)
    assert found == bad_words_ids(sentencepiece_like, ["fox"])
    assert sentencepiece_like.bos_token_id not in {token_id for ids in found for token_id in ids}


def test_a_space_alone_is_a_word(byte_level: Tokenizer) -> None:
    assert tuple(byte_level.encode(" ")) in bad_words_ids(byte_level, [" "])


def test_no_words(byte_level: Tokenizer) -> None:
    assert bad_words_ids(byte_level, ()) == []


def test_a_word_without_tokens_is_refused() -> None:
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    backend.normalizer = normalizers.Replace("x", "")
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(InvalidRequestError, match="no tokens") as caught:
        bad_words_ids(Tokenizer(backend), ["xxx"])
    assert caught.value.param == "bad_words"
