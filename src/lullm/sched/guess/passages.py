"""Passages: texts of tokens, and what stood there behind the last tokens of another text.

Places are found as in LZ77 (deflate, RFC 1951): a hash of two tokens leads to a chain of the places where these stand,
the newest first. A token takes 8 bytes, and a search looks at a few places only, however long the texts are.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_END = -1  # of a text, which nothing matches
_MOST_LINKS, _MOST_PLACES = 32, 8
"""Links of a chain that a search follows at most, and places that vote."""


class Continuation(NamedTuple):
    """Tokens that may follow, and how many of them are expected to be right, by how often they followed."""

    token_ids: list[int]
    num_expected: float


class Passages:
    """Texts, one behind the other. `num_bits`: chains begin in 2**num_bits places of 4 bytes."""

    __slots__ = ("_earlier", "_heads", "_mask", "_tokens")

    def __init__(self, num_bits: int):
        self._tokens = array("i")
        self._earlier = array("i")  # place -> the next one of its chain; -1: none
        self._heads = array("i", [-1]) * (1 << num_bits)
        self._mask = (1 << num_bits) - 1

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Add tokens to the last text."""
        tokens, heads, mask = self._tokens, self._heads, self._mask
        last = tokens[-1] if tokens else _END
        for token_id in token_ids:
            slot = _hashed(last, token_id) & mask
            self._earlier.append(heads[slot])
            heads[slot] = len(tokens)
            tokens.append(token_id)
            last = token_id

    def end_text(self) -> None:
        """What comes next is another text: nothing is found across its beginning."""
        self.extend([_END])

    def continuation(self, ending: Sequence[int], most_per_token: float, most: int, least_share: float) -> Continuation:
        """What stood behind the longest ending of `ending` that is here, of two tokens at least.

        The places with this ending vote token by token, and those that are outvoted drop out. A text that ends goes
        round: behind ABAB comes AB.

        Args:
            most_per_token: the most tokens for each token of the ending.
            most: the most tokens in all.
            least_share: the share of the places that must have stayed.
        """
        length, places = self._places(ending)
        most = min(most, int(most_per_token * length))
        num_places, expected, token_ids = len(places), 0.0, list[int]()
        while len(token_ids) < most:
            following = [(place, self._behind(place, len(token_ids))) for place in places]
            votes = Counter(token_id for _, token_id in following if token_id != _END)
            if not votes:
                break
            [(best, num)] = votes.most_common(1)
            if num < least_share * num_places:
                break
            token_ids.append(best)
            expected += num / num_places
            places = [place for place, token_id in following if token_id == best]
        return Continuation(token_ids, expected)

    def _places(self, ending: Sequence[int]) -> tuple[int, list[int]]:
        """(length, where the last token of the longest ending stands, newest first); (0, []): nowhere."""
        longest, places = 1, list[int]()
        if len(ending) < 2:
            return 0, places
        place, end = self._heads[_hashed(ending[-2], ending[-1]) & self._mask], len(self._tokens) - 1
        for _ in range(_MOST_LINKS):
            if place < 0 or len(places) == _MOST_PLACES:
                break
            length = self._match(place, ending) if place < end else 0
            if length > longest:
                longest, places = length, [place]
            elif length == longest > 1:
                places.append(place)
            place = self._earlier[place]
        return (longest, places) if places else (0, places)

    def _match(self, place: int, ending: Sequence[int]) -> int:
        """How many tokens up to `place` are the last ones of `ending`."""
        tokens, most = self._tokens, min(len(ending), place + 1)
        for length in range(most):
            if tokens[place - length] != ending[-1 - length]:
                return length
        return most

    def _behind(self, place: int, index: int) -> int:
        """The token `index` places behind the one that follows `place`."""
        return self._tokens[place + 1 + index % (len(self._tokens) - 1 - place)]


def _hashed(first: int, second: int) -> int:
    return (first * 0x9E3779B1 ^ second * 0x85EBCA6B) >> 7
