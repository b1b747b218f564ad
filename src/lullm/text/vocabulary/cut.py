"""How a text is cut into words before bytes are joined to tokens: regular expressions of known tokenizers.

`byte_level` makes a backend of a vocabulary, its merges and a cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""tiktoken's; the number of digits of a word is filled in."""
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%(end)s|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%(end)s|"
    r"\p{N}%(digits)s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""tiktoken's later one; what may end a word and the number of its digits are filled in."""
_WITHOUT_HAN = O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace("/", "")
KIMI = r"\p{Han}+|" + _WITHOUT_HAN % {"end": CONTRACTIONS + "?", "digits": "{1,3}"}
"""Kimi's: Chinese characters stand apart."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a text is cut into words.

    Attributes:
        regexes: each cuts the parts that the ones before it have left; none: GPT-2's, which the library has.
        digit_by_digit: with GPT-2's.
        composed: NFC before it.
        whole_words: a word of the vocabulary is one token, even if the merges split it.
        space_before: a text that begins without a space gets one.
    """

    regexes: tuple[str, ...] = ()
    digit_by_digit: bool = False
    composed: bool = False
    whole_words: bool = False
    space_before: bool = False


def byte_level(vocab: dict[str, int], merges: Sequence[tuple[str, str]], cut: Cut) -> Backend:
    """A backend whose tokens are bytes, spelled as GPT-2 does. Raises Exception: a merge is not in the vocabulary."""
    backend = Backend(BPE(vocab=vocab, merges=list(merges), ignore_merges=cut.whole_words))
    steps: list[Any] = [
        *(pre_tokenizers.Split(Regex(regex), "isolated") for regex in cut.regexes),
        pre_tokenizers.ByteLevel(add_prefix_space=cut.space_before, use_regex=not cut.regexes),
    ]
    if cut.digit_by_digit:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if cut.composed:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend
