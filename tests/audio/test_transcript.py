"""From outputs with times to segments: transformers' cuts; windows that follow one another; silence; forms."""

import math
import random

import numpy as np
import pytest
from kit.audio.checkpoint import FIRST_TIME, NUM_ROWS, TIMED_IDS, TIMED_VOCAB, write_timed_whisper

from lullm.audio.transcript.course import Windows, language_in
from lullm.audio.transcript.form import subtitles, text_of, verbose
from lullm.audio.transcript.language import language_code, language_name
from lullm.audio.transcript.segment import Segment, cut
from lullm.audio.transcript.words import Words
from lullm.errors import InvalidRequestError
from lullm.text.tokenizer import Tokenizer
from lullm.types.outputs import CompletionOutput, RequestOutput
from lullm.types.sampling_params import SamplingParams

END = TIMED_IDS["endoftext"]
PARAMS = SamplingParams(temperature=0.0, timestamps=True, logprobs=0)


def time(step):
    return FIRST_TIME + step


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    write_timed_whisper(folder)
    return Words(Tokenizer.from_folder(folder), TIMED_VOCAB, 64)


def golden_cut(token_ids, num_steps):
    """([(start, end)], steps to the next window), by transformers."""
    import torch
    from transformers import WhisperForConditionalGeneration

    segments, moved = WhisperForConditionalGeneration._retrieve_segment(
        seek_sequence=torch.tensor(token_ids), seek_outputs=[{}], time_offset=torch.zeros(1, dtype=torch.float64),
        timestamp_begin=FIRST_TIME, seek_num_frames=torch.tensor([2 * num_steps]), time_precision=0.02,
        time_precision_features=0.01, input_stride=2, prev_idx=0, idx=0, return_token_timestamps=False,
        decoder_input_ids=torch.tensor([[1, 2, 3]]),
    )  # fmt: skip
    spans = [(round(float(each["start"]) / 0.02), round(float(each["end"]) / 0.02)) for each in segments]
    return spans, round(int(moved) / 2)


def test_cuts_as_transformers():
    chance = random.Random(1)
    kinds = set()
    for _ in range(150):
        step, token_ids = chance.randrange(5), []
        for _ in range(chance.randrange(1, 4)):
            token_ids += [time(step)] + chance.choices(range(200), k=chance.randrange(1, 4))
            step += chance.randrange(1, 8)
            token_ids += [time(step)] * chance.randrange(2)
            step += chance.randrange(3)
        token_ids += [time(step)] * chance.randrange(2)
        spans, moved = cut(token_ids, FIRST_TIME, NUM_ROWS)
        assert ([(span.start, span.end) for span in spans], moved) == golden_cut(token_ids, NUM_ROWS)
        kinds.add((len(spans), moved == NUM_ROWS))
    assert len(kinds) >= 6
    assert cut([], FIRST_TIME, 7) == ([(0, 7, [])], 7)


class Model:
    """Answers a course's questions from a list of (token ids, mean log-probability), and silence from another."""

    def __init__(self, outputs, silences=()):
        self.outputs, self.silences, self.asked = list(outputs), list(silences), []

    def run(self, course):
        try:
            questions = next(course)
            while True:
                questions = course.send([self._answer(*question) for question in questions])
        except StopIteration as end:
            return end.value

    def _answer(self, prompt, params):
        if params.timestamps:
            self.asked.append((len(prompt["multi_modal_data"]["audio"][0]), params.temperature))
            token_ids, mean = self.outputs.pop(0)
        else:
            token_ids, mean = [3], math.log(self.silences.pop(0) if self.silences else 0.1)
        completion = CompletionOutput(0, "", token_ids, cumulative_logprob=mean * len(token_ids))
        return RequestOutput("a", None, [], [completion], finished=True)


def found(words, outputs, silences=(), seconds=2.5, rate=1000, params=PARAMS):
    model = Model(outputs, silences)
    sound = np.zeros(int(seconds * rate), np.float32), rate
    prompt = words.prompt("transcribe", "en", None, has_times=True)
    segments = model.run(Windows(words, sound, 1.0, prompt, params).all_segments())
    assert not model.outputs, "all are asked for"
    return segments, model.asked


def test_windows_follow_one_another(words):
    outputs = [
        ([time(0), 70, 71, time(30), time(30), 72, END], -0.5),  # the second segment is cut short: heard again
        ([time(5), 73, time(50), END], -0.5),  # one segment up to the end
        ([time(0), 74, 75, END], -0.5),
    ]
    segments, asked = found(words, outputs)
    assert [(each.seek, each.start_s, each.end_s) for each in segments] == [
        (0, 0.0, pytest.approx(0.6)),
        (60, 0.6, pytest.approx(1.6)),
        (160, pytest.approx(1.6), pytest.approx(2.5)),
    ]
    assert segments[0].token_ids == [time(0), 70, 71, time(30)] and segments[0].avg_logprob == -0.5
    assert asked == [(1000, 0.0), (1000, 0.0), (900, 0.0)]
    assert segments[0].no_speech_prob == pytest.approx(0.1)


def test_silence_is_left_out(words):
    said = [time(0), 70, time(40), END]
    segments, asked = found(words, [(said, -2.0), (said, -0.9), (said, -0.9)], [0.9, 0.9, 0.1])
    assert [each.seek for each in segments] == [100, 200], "what is sure of its words is no silence"
    assert len(asked) == 3, "and silence is not asked again"


def test_doubted_outputs_are_made_again(words):
    said, again = [time(0), 70, time(40), END], [time(0), *[71] * 60, time(40), END]
    outputs = [(said, -1.5), (again, -0.5), (said, -0.8)]
    [segment], asked = found(words, outputs, seconds=1.0)
    assert [round(temperature, 1) for _, temperature in asked] == [0.0, 0.2, 0.4]
    assert (segment.temperature, segment.avg_logprob) == (0.4, pytest.approx(-0.8))
    _, asked = found(words, [(said, -3.0)] * 6, seconds=1.0)
    assert [round(temperature, 1) for _, temperature in asked] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0], "the last one counts"
    [segment], asked = found(words, [(said, -3.0)], seconds=1.0, params=PARAMS.replace(temperature=0.3))
    assert asked == [(1000, 0.3)] and segment.temperature == 0.3


def test_nothing_said_is_no_segment(words):
    outputs = [([time(0), END], -0.1), ([time(3), 70, time(3), time(3), END], -0.1), ([], -0.1)]
    assert found(words, outputs, seconds=1.5)[0] == []


def test_the_language_of_a_sound(words):
    def answer(prompt, params):
        assert prompt["prompt_token_ids"] == [TIMED_IDS["startoftranscript"]]
        assert set(params.allowed_token_ids) == {TIMED_IDS[name] for name in ("en", "de", "fr")}
        return RequestOutput("a", None, [], [CompletionOutput(0, "", [TIMED_IDS["fr"]])], finished=True)

    model = Model([])
    model._answer = answer
    assert model.run(language_in(words, (np.zeros(9, np.float32), 1000))) == "fr"


def test_words_of_languages(words):
    assert words.check("transcribe", "German") == words.check("translate", "de") == "de"
    assert words.check("transcribe", None) is None
    with pytest.raises(InvalidRequestError, match="'zz' is not one of de, en, fr"):
        words.check("transcribe", "zz")
    assert language_name("yue") == "cantonese" and language_name("zz") == "zz"
    assert language_code("Haitian Creole") == "ht" and language_code("EN") == "en"


def test_names_as_transformers_has_them():
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    from lullm.audio.transcript.language import NAMES

    assert NAMES == LANGUAGES


def test_forms():
    segments = [
        Segment(0, 0.0, 1.5, " Hello --> you.", [1], 0.0, -0.5, 1.0, 0.1),
        Segment(0, 3661.0, 3662.25, " Bye.", [2], 0.0, -0.5, 1.0, 0.1),
    ]
    assert subtitles("srt", segments) == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello -> you.\n\n2\n01:01:01,000 --> 01:01:02,250\nBye.\n\n"
    )
    assert subtitles("vtt", segments) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello -> you.\n\n01:01:01.000 --> 01:01:02.250\nBye.\n\n"
    )
    assert text_of(segments) == "Hello --> you. Bye."
    answer = verbose("transcribe", "de", 9.87654, segments)
    assert (answer["language"], answer["duration"], answer["text"]) == ("german", 9.877, text_of(segments))
    assert [each["id"] for each in answer["segments"]] == [0, 1]
