"""EncoderOnlyInput: the prompts of encoders, which have special tokens around a text, and around a pair of texts."""

from collections.abc import Sequence

from lullm.errors import InvalidRequestError
from lullm.text.tokenizer import Tokenizer
from lullm.types.request import TextPair
from lullm.types.vision.tile import TilePlace


class EncoderOnlyInput:
    """Reads pairs, and cuts texts so that the special tokens stay. Several threads may share one."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int):
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len

    def truncated(self, ids: list[int], num_kept: int, num_most: int, tiles: Sequence[TilePlace] = ()) -> list[int]:
        """The first tokens, `num_kept` of them with those around the text, or `num_most` if that is -1."""
        assert not tiles, "encoders see no pictures"
        most = num_most if num_kept < 0 else num_kept
        if len(ids) <= most:
            return ids
        _, behind = self._tokenizer.around
        if not behind or ids[-len(behind) :] != behind or most < len(behind):
            return ids[:most]
        return ids[: most - len(behind)] + behind

    def pair(self, pair: TextPair, num_kept: int | None) -> tuple[str, list[int], int]:
        """(the texts, one behind the other; the ids with the special tokens around them; where the second begins).

        Special tokens in the texts are text. `num_kept`: the longer text is cut until so many tokens are left; -1: as
        many as the model reads; None: nothing is cut.

        Raises:
            InvalidRequestError: an argument is not text, or there is no room for one token of each.
        """
        if pair.instruction is not None:
            raise InvalidRequestError(
                "this model reads a pair without instructions; write the instruction into the query", "instruction"
            )
        if pair.template is not None:
            raise InvalidRequestError(
                "this model reads its special tokens between the two texts, and no template", "chat_template"
            )
        for name in ("query", "document"):
            if not isinstance(getattr(pair, name), str):
                raise InvalidRequestError(f"a {name} must be a string, not {type(getattr(pair, name)).__name__}", name)
        before, between, behind = self._tokenizer.around_pair
        encode = self._tokenizer.encode_as_text
        first, second = (encode(text, add_special_tokens=False) for text in (pair.query, pair.document))
        if num_kept is not None:
            most = self._max_model_len if num_kept < 0 else num_kept
            room = most - len(before) - len(between) - len(behind)
            if room < 2:
                raise InvalidRequestError(
                    f"{most} tokens are too few for a pair and its special tokens; keep more", "truncate_prompt_tokens"
                )
            first, second = _cut_longer(first, second, room)
        start = [*before, *first, *between]
        return pair.query + pair.document, [*start, *second, *behind], len(start)


def _cut_longer(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Both texts within `room` tokens: the longer one is cut first, then both alike."""
    if len(first) + len(second) <= room:
        return first, second
    num_shorter = min(len(first), len(second), room // 2)
    num_longer = room - num_shorter
    if len(first) > len(second):
        return first[:num_longer], second[:num_shorter]
    return first[:num_shorter], second[:num_longer]
