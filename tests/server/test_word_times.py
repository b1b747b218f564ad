"""Times of single words, as OpenAI's clients read them: transformers', window after window."""

import pytest
from kit.audio.checkpoint import FIRST_TIME, RATE, TEXT_IDS, TransformersWords, sound, write_timed_whisper
from kit.audio.timed import FIELDS as ANY_LANGUAGE
from kit.audio.timed import LENGTH, LONG, SURE, ears, file_of, post

from lullm.audio.transcript.segment import cut

FIELDS = ANY_LANGUAGE | {"language": "en"}
FIELD = "timestamp_granularities[]"


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    heads = [[0, 1], [1, 0], [1, 2]]
    folder = tmp_path_factory.mktemp("whisper")
    return write_timed_whisper(folder, 3, max_initial_timestamp_index=5, alignment_heads=heads)


@pytest.fixture(scope="module")
def running(whisper, start_for_module):
    return start_for_module(ears(whisper))


def golden(whisper, samples, language):
    """[(word, start, end)] of transformers' windows. A word begins where the token before it is said."""
    found, seek, tokenizer = [], 0, TransformersWords(whisper.folder)
    while seek * 160 < len(samples):
        window = samples[seek * 160 : seek * 160 + RATE]
        tokens, times = whisper.token_times(window, LENGTH)
        said = [token for token in tokens if token < TEXT_IDS or token >= FIRST_TIME]
        spans, moved = cut(said, FIRST_TIME, -(-len(window) // 320))
        times, first = [0.0, *times], 0
        for span in spans:
            text = [number for number, token in enumerate(span.token_ids, first) if token < TEXT_IDS]
            if span.end > span.start:
                pairs = [(seek / 100 + times[number], seek / 100 + times[number + 1]) for number in text]
                found += tokenizer.words([said[number] for number in text], pairs, language)
            first += len(span.token_ids)
        seek += 2 * moved
    return [(text.strip(), start, end) for text, start, end in found if text.strip()]


@pytest.mark.parametrize("seed", [3, 5])
def test_words(running, whisper, seed):
    samples = sound(seed, 2.3)
    answer = post(running, samples, **FIELDS, **{FIELD: "word"}).json()
    expected = golden(whisper, samples, "english")
    assert [each["word"] for each in answer["words"]] == [text for text, _, _ in expected]
    for word, (_, start, end) in zip(answer["words"], expected, strict=True):
        assert (word["start"], word["end"]) == (pytest.approx(start, abs=2e-3), pytest.approx(end, abs=2e-3))
    starts = [each["start"] for each in answer["words"]]
    assert starts == sorted(starts) and len(set(starts)) >= 3 and starts[-1] > 1
    assert "segments" not in answer and answer["text"] and answer["usage"]["seconds"] == 3.0


def test_words_and_segments(running):
    """Both are in one answer, and segments are what they are without words."""
    both = post(running, **FIELDS, **{FIELD: ["segment", "word"]}).json()
    plain = post(running, **FIELDS).json()
    assert "words" not in plain and both["segments"] == plain["segments"] and both["text"] == plain["text"]
    assert both["words"] == post(running, **FIELDS, **{FIELD: "word"}).json()["words"]
    said = "".join(each["text"] for each in plain["segments"]).split()
    assert "".join(each["word"] for each in both["words"]).replace(" ", "") == "".join(said)


def test_openais_client(running):
    with running.openai() as client:
        answer = client.audio.transcriptions.create(
            model="ears",
            file=file_of(LONG),
            language="en",
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
            extra_body={"max_completion_tokens": LENGTH, **SURE},
        )
    assert answer.words and answer.segments
    assert all(word.start <= word.end <= answer.duration for word in answer.words)


def test_what_is_refused(running):
    for path, fields, words in [
        ("translations", {}, "words of a translation"),
        ("transcriptions", {"response_format": "json"}, "needs response_format=verbose_json"),
    ]:
        error = post(running, path=path, **FIELDS | fields, **{FIELD: "word"})
        assert error.status_code == 400 and error.json()["error"]["param"] == FIELD
        assert words in error.json()["error"]["message"]
