"""Segments: an output with times, cut into what was said from one time to another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lullm.audio.transcript.spoken import SpokenWord

TIME_STEP_S = 0.02
"""Seconds from one token of times to the next."""
FRAMES_PER_TIME = 2
"""Frames of features in them."""


class Span(NamedTuple):
    """`start` and `end` in steps of TIME_STEP_S from the window's beginning; `token_ids` with the times around them."""

    start: int
    end: int
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Segment:
    """What was said from `start_s` to `end_s` of a sound, with the names of OpenAI's fields.

    `seek`: the frame of 10 ms at which its window begins. The figures from `temperature` on are of the whole window:
    `avg_logprob`: the mean log-probability of its tokens; `compression_ratio`: of its text, high where it repeats
    itself; `no_speech_prob`: that nobody speaks. `words`: with their times, if they are asked for.
    """

    seek: int
    start_s: float
    end_s: float
    text: str
    token_ids: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: tuple[SpokenWord, ...] = ()


def cut(token_ids: Sequence[int], first_time: int, num_steps: int) -> tuple[list[Span], int]:
    """(the spans of a window's output, steps from its beginning to the next window's), as Whisper moves on.

    Where the output has two times beside each other, a segment has ended for certain, and the window moves to the last
    one's end: the model may have been cut short in what comes behind it, which is heard again. A single time at the end
    says that nothing comes behind it. Otherwise all is one segment.

    Args:
        token_ids: without the end of the text.
        first_time: the token of 0.00 s.
        num_steps: of the window's sound.
    """
    is_time = [token_id >= first_time for token_id in token_ids]
    ends = [place + 1 for place in range(len(token_ids) - 1) if is_time[place] and is_time[place + 1]]
    if not ends:
        times = [token_id - first_time for token_id in token_ids if token_id >= first_time]
        last = times[-1] if times and times[-1] > 0 else num_steps
        return [Span(0, last, list(token_ids))], num_steps
    ends_whole = is_time[-2:] == [False, True]
    if ends_whole:
        ends.append(len(token_ids))
    spans = []
    for first, end in zip([0, *ends], ends, strict=False):
        part = list(token_ids[first:end])
        spans.append(Span(max(part[0] - first_time, 0), part[-1] - first_time, part))
    moved = num_steps if ends_whole else spans[-1].end
    return spans, moved if moved > 0 else num_steps
