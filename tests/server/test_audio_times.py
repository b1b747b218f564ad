"""Answers with times, as OpenAI's clients read them: transformers' outputs, window after window."""

import numpy as np
import pytest
import torch
from kit.audio.checkpoint import FIRST_TIME, RATE, TIMED_IDS, sound, write_timed_whisper
from kit.audio.timed import FIELDS, LENGTH, LONG, MAX_MODEL_LEN, SURE, ears, file_of, post

from lullm.audio.transcript.segment import cut

START = TIMED_IDS["startoftranscript"]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return write_timed_whisper(tmp_path_factory.mktemp("whisper"), 3, max_initial_timestamp_index=5)


@pytest.fixture(scope="module")
def running(whisper, start_for_module):
    return start_for_module(ears(whisper))


def golden(whisper, samples, **options):
    """[(seek, start, end, tokens, mean log-probability, probability of silence)] of transformers' windows."""
    found, seek = [], 0
    while seek * 160 < len(samples):
        window = samples[seek * 160 : seek * 160 + RATE]
        tokens, total = whisper.timed(window, LENGTH, **options)
        with torch.inference_mode():
            given = {"input_features": whisper.features(window), "decoder_input_ids": torch.tensor([[START]])}
            silence = float(whisper.model(**given).logits[0, 0].softmax(-1)[TIMED_IDS["nospeech"]])
        said = [token for token in tokens if token != TIMED_IDS["endoftext"]]
        spans, moved = cut(said, FIRST_TIME, -(-len(window) // 320))
        for span in spans:
            times = seek / 100 + span.start * 0.02, seek / 100 + span.end * 0.02
            found.append((seek, *times, span.token_ids, total / len(tokens), silence))
        seek += 2 * moved
    return found


def test_verbose_json(running, whisper):
    answer = post(running, language="en", **FIELDS).json()
    expected = [each for each in golden(whisper, LONG) if each[2] > each[1]]
    assert len(expected) > 3 and len({each[0] for each in expected}) > 2, "several windows"
    assert [each["tokens"] for each in answer["segments"]] == [each[3] for each in expected]
    for segment, (seek, start, end, _, mean, silence) in zip(answer["segments"], expected, strict=True):
        assert segment["seek"] == seek and segment["temperature"] == 0.0 and segment["compression_ratio"] > 0
        assert (segment["start"], segment["end"]) == (pytest.approx(start, abs=1e-6), pytest.approx(end, abs=1e-6))
        assert segment["avg_logprob"] == pytest.approx(mean, abs=1e-4)
        assert segment["no_speech_prob"] == pytest.approx(silence, rel=1e-3)
    assert answer["text"] == "".join(segment["text"] for segment in answer["segments"]).strip()
    assert (answer["task"], answer["language"], answer["duration"]) == ("transcribe", "english", 2.3)
    assert answer["usage"] == {"type": "duration", "seconds": 3.0}


def test_openais_client_and_the_language_that_is_heard(running, whisper):
    short = sound(1, 0.9)
    heard = int(
        whisper.model.detect_language(whisper.features(short), generation_config=whisper.model.generation_config)
    )
    code, name = {TIMED_IDS[c]: (c, n) for c, n in (("en", "english"), ("de", "german"), ("fr", "french"))}[heard]
    with running.openai() as client:
        answer = client.audio.transcriptions.create(
            model="ears",
            file=file_of(short),
            response_format="verbose_json",
            timestamp_granularities=["segment"],
            extra_body={"max_completion_tokens": LENGTH, **SURE},
        )
    assert answer.language == name and answer.duration == 0.9
    assert [list(each.tokens) for each in answer.segments] == [
        each[3] for each in golden(whisper, short, language=code)
    ]
    translated = post(running, short, "translations", **FIELDS).json()
    expected = golden(whisper, short, language=code, task="translate")
    assert (translated["task"], translated["language"]) == ("translate", "english")
    assert [each["tokens"] for each in translated["segments"]] == [each[3] for each in expected]


def test_an_earlier_text(running, whisper):
    """Before each window, as transformers' `prompt_ids`; silence is asked for behind it, too."""
    with running.http() as http:
        ids = http.post("/tokenize", json={"prompt": " hello world"}).json()["tokens"]
    before = torch.tensor([TIMED_IDS["startofprev"], *ids])
    answer = post(running, language="en", prompt="hello world", **FIELDS | {"max_completion_tokens": "12"}).json()
    first, seek = [], 0
    for segment in answer["segments"]:
        if segment["seek"] != seek or not first:
            seek = segment["seek"]
            window = LONG[seek * 160 : seek * 160 + RATE]
            first, total = whisper.timed(window, 12, prompt_ids=before)
            with torch.inference_mode():
                prompt = torch.tensor([[*before.tolist(), START]])
                given = {"input_features": whisper.features(window), "decoder_input_ids": prompt}
                silence = float(whisper.model(**given).logits[0, -1].softmax(-1)[TIMED_IDS["nospeech"]])
        assert "".join(map(str, segment["tokens"])) in "".join(map(str, first))
        assert segment["avg_logprob"] == pytest.approx(total / len(first), abs=1e-4)
        assert segment["no_speech_prob"] == pytest.approx(silence, rel=1e-3)


def test_subtitles(running):
    fields = FIELDS | {"language": "English"}
    segments = post(running, **fields).json()["segments"]
    srt, vtt = (post(running, **fields | {"response_format": kind}) for kind in ("srt", "vtt"))
    assert srt.headers["content-type"].startswith("text/plain") and vtt.text.startswith("WEBVTT\n\n")
    assert srt.text.count(" --> ") == vtt.text.count(" --> ") == len(segments)
    assert srt.text.startswith("1\n00:00:00,") and segments[0]["text"].strip() in srt.text


def test_doubts(running):
    """Noise of a random model: it is made again, hotter; with a low bound for silence it is none at all."""
    fields = {"language": "en", "response_format": "verbose_json", "max_completion_tokens": "8", "seed": "1"}
    hot = post(running, sound(1, 0.9), **fields).json()["segments"]
    assert all(each["temperature"] > 0 for each in hot)
    silent = post(running, sound(1, 0.9), no_speech_threshold="0", logprob_threshold="100", **fields).json()
    assert silent["segments"] == [] and silent["text"] == ""
    warm = post(running, sound(1, 0.9), temperature="0.3", **fields).json()["segments"]
    assert {each["temperature"] for each in warm} <= {0.3}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[]", "has no alignment_heads"),
        ({"timestamp_granularities[]": "line"}, "timestamp_granularities[]", "is segment or word"),
        (
            {"timestamp_granularities[]": "word", "response_format": "srt"},
            "timestamp_granularities[]",
            "needs response_format=verbose_json",
        ),
        (
            {"timestamp_granularities": "segment", "response_format": "json"},
            "timestamp_granularities[]",
            "verbose_json",
        ),
        ({"stream": "true"}, "stream", "cannot be streamed"),
        ({"response_format": "text", "no_speech_threshold": "0.5"}, "no_speech_threshold", "with times"),
        (
            {"response_format": "json", "condition_on_previous_text": "true"},
            "condition_on_previous_text",
            "with times",
        ),
        ({"logprob_threshold": "low"}, "logprob_threshold", "number"),
    ],
    ids=str,
)
def test_what_is_refused(running, fields, param, words):
    error = post(running, np.zeros(100, np.float32), **{"response_format": "verbose_json"} | fields)
    assert error.status_code == 400 and error.json()["error"]["param"] == param
    assert words in error.json()["error"]["message"]


def test_the_text_before_a_window(running, whisper):
    """In its prompt, with times and behind the request's own, as in transformers' `prompt_ids`; its end counts."""
    with running.http() as http:
        ids = http.post("/tokenize", json={"prompt": " hello world"}).json()["tokens"]
    fields = FIELDS | {"max_completion_tokens": "12", "condition_on_previous_text": "true"}
    for own, given in (([], {}), (ids, {"prompt": "hello world"})):
        answer = post(running, sound(3, 4.3), language="en", **fields, **given).json()
        said, expected, seek, samples = [], [], 0, sound(3, 4.3)
        while seek * 160 < len(samples):
            window = samples[seek * 160 : seek * 160 + RATE]
            kept = said[-(MAX_MODEL_LEN // 2 - 1 - len(own)) :]
            before = [TIMED_IDS["startofprev"], *own, *kept] if own or kept else []
            options = {"prompt_ids": torch.tensor(before)} if before else {}
            tokens, _ = whisper.timed(window, 12, **options)
            spans, moved = cut([t for t in tokens if t != TIMED_IDS["endoftext"]], FIRST_TIME, -(-len(window) // 320))
            found = [span.token_ids for span in spans if span.end > span.start]
            said += [token for each in found for token in each]
            expected += found
            seek += 2 * moved
        assert len(said) > MAX_MODEL_LEN // 2, "more than a prompt holds"
        assert [each["tokens"] for each in answer["segments"]] == expected
    plain = post(running, sound(3, 4.3), language="en", **fields | {"condition_on_previous_text": "false"}).json()
    assert [each["tokens"] for each in plain["segments"]] != expected
