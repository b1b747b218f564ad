"""The work on a sound, window after window, as questions to a model."""

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lullm.audio.features import HOP, SAMPLING_RATE
from lullm.audio.transcript.question import Course, Question, Sound, heard
from lullm.audio.transcript.segment import FRAMES_PER_TIME, TIME_STEP_S, Segment, Span, cut
from lullm.audio.transcript.spoken import SpokenWord
from lullm.audio.transcript.word_times import WordTimes
from lullm.audio.transcript.words import Words
from lullm.types.outputs import CompletionOutput, RequestOutput
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.sampling_params import OutputKind, SamplingParams

_FRAME_S = HOP / SAMPLING_RATE
_STEP = 0.2
_HOT = 0.5


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When an output is doubted, with the names and values of Whisper's paper (section 4.5).

    Args:
        compression_ratio: of the text, above which it repeats itself.
        logprob: mean log-probability of the tokens, below which it is guessed.
        no_speech: probability of silence, above which a guessed text is none at all.
    """

    compression_ratio: float = 2.4
    logprob: float = -1.0
    no_speech: float = 0.6


def language_in(words: Words, sound: Sound) -> Course[str]:
    """The language of one window, by its code: the model's most likely one."""
    params = SamplingParams(
        temperature=0.0,
        max_tokens=1,
        allowed_token_ids=words.language_ids,
        skip_special_tokens=False,
        output_kind=OutputKind.FINAL_ONLY,
    )
    [output] = yield [(heard(words.start(), sound), params)]
    return words.language_of(_completion(output).token_ids[0])


@dataclass(slots=True)
class Windows:
    """The windows of a sound of any length, one after the other: each begins where the last segment before it ended.

    An output that is doubted is made again at higher temperatures, if `params` is greedy.

    Args:
        prompt: of each window; see `Words.prompt`.
        params: of its draws, with timestamps and log-probabilities.
        seek: the frame at which the next window begins.
        keeps_text: each window's prompt has the text of those before it, up to one that was drawn at a temperature
            above 0.5: what is guessed would be repeated.
        said: the tokens of that text.
        word_times: for the times of single words; None: they are not wanted.
    """

    words: Words
    sound: Sound
    window_s: float
    prompt: list[int]
    params: SamplingParams
    thresholds: Thresholds = Thresholds()
    seek: int = 0
    keeps_text: bool = False
    said: list[int] = field(default_factory=list)
    word_times: WordTimes | None = None

    @property
    def is_over(self) -> bool:
        """Whether all was heard."""
        return self._first >= len(self.sound[0])

    @property
    def _first(self) -> int:
        return round(self.seek * _FRAME_S * self.sound[1])

    def segments(self) -> Course[list[Segment]]:
        """What was said in the next window, and when."""
        samples, rate = self.sound
        window = samples[self._first : self._first + int(self.window_s * rate)]
        num_frames = min(round(self.window_s / _FRAME_S), math.ceil(len(window) / rate / _FRAME_S))
        seek = self.seek
        prompt, params = self.prompt, self.params
        if self.said:
            prompt = self.words.after(prompt, self.said)
            room = self.words.room(prompt)
            params = params.replace(max_tokens=min(room, params.max_tokens or room))
        taken = yield from _taken(self.words, (window, rate), prompt, params, self.thresholds)
        if taken is None:
            self.seek += num_frames
            return []
        token_ids = [token_id for token_id in taken.completion.token_ids if token_id != self.words.end_id]
        spans, moved = cut(token_ids, self.words.first_time, -(-num_frames // FRAMES_PER_TIME))
        times_s = list[float]()
        if self.word_times is not None and self.words.text(token_ids).strip():
            is_whole = taken.completion.finish_reason == "stop"
            about = prompt, token_ids, is_whole, (window, rate), num_frames // FRAMES_PER_TIME
            rows = yield from self.word_times.rows(*about)
            times_s = [seek * _FRAME_S + row * TIME_STEP_S for row in [0, *rows]]
        found = list(self._spoken(spans, taken, times_s))
        self.seek += moved * FRAMES_PER_TIME
        if self.keeps_text:
            is_guessed = taken.figures[0] > _HOT
            self.said = [] if is_guessed else [*self.said, *(i for segment in found for i in segment.token_ids)]
        return found

    def _spoken(self, spans: Sequence[Span], taken: "_Taken", times_s: list[float]) -> Iterator[Segment]:
        """The spans in which something is said. `times_s`: of all tokens, for `WordTimes.words`; empty: not wanted."""
        first = 0
        for span in spans:
            text, end = self.words.text(span.token_ids), first + len(span.token_ids)
            if text.strip() and span.end > span.start:
                start_s, end_s = (self.seek * _FRAME_S + steps * TIME_STEP_S for steps in (span.start, span.end))
                words: tuple[SpokenWord, ...] = ()
                if self.word_times is not None:
                    words = tuple(self.word_times.words(self.words, span.token_ids, times_s[first : end + 1]))
                yield Segment(self.seek, start_s, end_s, text, span.token_ids, *taken.figures, words)
            first = end

    def all_segments(self) -> Course[list[Segment]]:
        """What was said in all windows that are left."""
        found: list[Segment] = []
        while not self.is_over:
            found += yield from self.segments()
        return found


@dataclass(frozen=True, slots=True)
class _Taken:
    """The output of one window. `figures`: the last fields of its segments."""

    completion: CompletionOutput
    figures: tuple[float, float, float, float]


def _taken(
    words: Words, sound: Sound, prompt: list[int], params: SamplingParams, thresholds: Thresholds
) -> Course[_Taken | None]:
    """The output of a window; None: nobody speaks in it."""
    silence = SamplingParams(
        temperature=0.0,
        max_tokens=1,
        allowed_token_ids=[words.silence_id],
        logprobs=0,
        output_kind=OutputKind.FINAL_ONLY,
    )
    asked: list[Question] = [(heard(words.silence_prompt(prompt), sound), silence)]
    ladder = [step * _STEP for step in range(6)] if params.is_greedy else [params.temperature]
    no_speech, taken = 0.0, None
    for temperature in ladder:
        outputs = yield [*asked, (heard(prompt, sound), params.replace(temperature=temperature))]
        if asked:
            no_speech, asked = math.exp(_total(_completion(outputs[0]))), []
        completion = _completion(outputs[-1])
        ratio = _compression_ratio(words.text(list(completion.token_ids)).strip())
        mean = _total(completion) / max(len(completion.token_ids), 1)
        taken = _Taken(completion, (round(temperature, 1), mean, ratio, no_speech))
        if mean < thresholds.logprob and no_speech > thresholds.no_speech:
            return None
        if mean >= thresholds.logprob and ratio <= thresholds.compression_ratio:
            break
    return taken


def _completion(output: EngineOutput) -> CompletionOutput:
    assert isinstance(output, RequestOutput), "it has a text"
    return output.outputs[0]


def _total(completion: CompletionOutput) -> float:
    assert completion.cumulative_logprob is not None, "the questions want log-probabilities"
    return completion.cumulative_logprob


def _compression_ratio(text: str) -> float:
    data = text.encode()
    return len(data) / len(zlib.compress(data))
