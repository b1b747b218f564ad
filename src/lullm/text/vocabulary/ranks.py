"""Vocabularies of tiktoken's kind: tokens as bytes in the order of their joining, and no merges.

A word of the vocabulary is one token. Others are joined pair by pair, the pair that makes the earliest token first.
The merges are all pairs of tokens that make a token. It does not matter which of them make the same token: while a word
is joined, only one of them can come to stand side by side, the one that joining this token's own bytes ends with.
Finding the pairs of 150,000 tokens takes two seconds.
"""

from collections.abc import Mapping
from dataclasses import replace

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from lullm.text.token_bytes import BYTE_CHARACTERS
from lullm.text.vocabulary.cut import Cut, byte_level


def ranked(words: Mapping[bytes, int], added: Mapping[int, AddedToken], cut: Cut) -> Backend:
    """A backend of `words`, whose ids are the order of their joining, and of other tokens by their ids.

    `words` has all single bytes. A word that is spelled as an added token is dropped: the library has one id per
    spelling.
    """
    spelled = {word: "".join(BYTE_CHARACTERS[byte] for byte in word) for word in words}
    vocab = {spelled[word]: number for word, number in words.items()}
    vocab |= {token.content: number for number, token in added.items()}
    hidden = {token.content for token in added.values()}
    backend = byte_level(vocab, _merges(words, spelled, hidden), replace(cut, whole_words=True))
    backend.add_tokens([token for _, token in sorted(added.items(), key=lambda item: item[0])])
    return backend


def _merges(words: Mapping[bytes, int], spelled: Mapping[bytes, str], hidden: set[str]) -> list[tuple[str, str]]:
    """All pairs of tokens that make a token, in the order of the result, then of the parts."""
    found: list[tuple[str, str]] = []
    for word in sorted(words, key=words.__getitem__):
        parts = [(word[:at], word[at:]) for at in range(1, len(word))]
        known = [(words[left], words[right], left, right) for left, right in parts if left in words and right in words]
        found += [(spelled[left], spelled[right]) for _, _, left, right in sorted(known)]
    return [pair for pair in found if not hidden.intersection((*pair, pair[0] + pair[1]))]
