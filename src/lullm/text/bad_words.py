"""bad_words: the token sequences that spell a forbidden word."""

from collections.abc import Iterable

from lullm.errors import InvalidRequestError
from lullm.text.tokenizer import Tokenizer

_BEFORE = "\n"  # ends a word without a space, so that the next word is spelled as in the middle of a text


def bad_words_ids(tokenizer: Tokenizer, words: Iterable[str]) -> list[tuple[int, ...]]:
    """Token sequences to forbid: each word at the start of a text, after a space, and without a space before it.

    As in vLLM this forbids the usual spellings, not every split of the word into tokens. Without duplicates, in the
    order of `words`.

    Raises:
        InvalidRequestError: a word has no tokens (param 'bad_words').
    """
    before_ids = tokenizer.encode(_BEFORE, add_special_tokens=False)
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip() or word
        spellings = [tokenizer.encode(text, add_special_tokens=False) for text in (bare, " " + bare)]
        inner = tokenizer.encode(_BEFORE + bare, add_special_tokens=False)
        if inner[: len(before_ids)] == before_ids:  # otherwise one token spans `_BEFORE` and the word
            spellings.append(inner[len(before_ids) :])
        spellings = [ids for ids in spellings if ids]
        if not spellings:
            raise InvalidRequestError(f"bad_words: {word!r} has no tokens in this vocabulary", "bad_words")
        found.update(dict.fromkeys(tuple(ids) for ids in spellings))
    return list(found)
