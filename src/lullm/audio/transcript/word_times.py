"""WordTimes: single words and their times, by one more question about each window."""

from collections.abc import Iterator
from dataclasses import dataclass

from lullm.audio.transcript.alignment import token_rows
from lullm.audio.transcript.question import Course, Sound, heard
from lullm.audio.transcript.spoken import SpokenWord, has_spaces, word_parts
from lullm.audio.transcript.words import Words
from lullm.config.layer.encoder import EncoderConfig
from lullm.errors import InvalidRequestError
from lullm.types.pooling.outputs import PoolingRequestOutput
from lullm.types.pooling.params import PoolingParams

_FIELD = "timestamp_granularities[]"


def check_words(encoder: EncoderConfig | None, task: str) -> None:
    """Check that words have times. Raises InvalidRequestError: not of this model, or not of this task."""
    if encoder is None:
        raise InvalidRequestError("this model does not say when single words are said; leave word out", _FIELD)
    if task == "translate":
        raise InvalidRequestError("words of a translation are not in the sound; take segment, or transcribe", _FIELD)
    if not encoder.alignment_heads:
        raise InvalidRequestError(f"single words have no times: {encoder.no_alignment}; take segment", _FIELD)


@dataclass(frozen=True, slots=True)
class WordTimes:
    """How the times of single words are found.

    Args:
        num_heads: whose attention the model tells, task 'align'.
        filter_width: see `EncoderConfig.median_filter_width`.
        splits_at_spaces: see `word_parts`.
    """

    num_heads: int
    filter_width: int
    splits_at_spaces: bool

    @classmethod
    def of(cls, encoder: EncoderConfig, language: str) -> "WordTimes":
        """For a model whose words have times, and a language by its code."""
        return cls(len(encoder.alignment_heads), encoder.median_filter_width, has_spaces(language))

    def rows(
        self, prompt: list[int], said: list[int], is_whole: bool, sound: Sound, num_rows: int
    ) -> Course[list[int]]:
        """The encoder's row at which each token of an output is said.

        Args:
            said: the output without its end. `is_whole`: the model has ended it. If not, the last token is said where
                the one before it is: nothing has attended behind it.
            num_rows: of the window's sound.
        """
        fed = said if is_whole else said[:-1]
        if not fed:
            return [0] * len(said)
        params = PoolingParams(task="align", align_from=len(prompt))
        [output] = yield [(heard([*prompt, *fed], sound), params)]
        assert isinstance(output, PoolingRequestOutput), "it pools"
        weights = output.outputs.data.reshape(len(fed), self.num_heads, -1)
        found = token_rows(weights[:, :, : max(num_rows, 1)], self.filter_width)
        return found + found[-1:] * (len(said) - len(fed))

    def words(self, words: Words, token_ids: list[int], times_s: list[float]) -> Iterator[SpokenWord]:
        """The words of a segment.

        A token attends to what the next one says, so its time is where the next one begins.

        Args:
            times_s: of the token before the first one, and of each.
        """
        numbers = [number for number, token_id in enumerate(token_ids) if words.is_text(token_id)]
        for part in word_parts([token_ids[number] for number in numbers], words.text, self.splits_at_spaces):
            if text := part.text.strip():
                yield SpokenWord(text, times_s[numbers[part.first]], times_s[numbers[part.last] + 1])
