"""Transcripts as text: JSON with all figures, and subtitles (SRT, WebVTT)."""

from collections.abc import Sequence
from typing import Any

from lullm.audio.transcript.language import language_name
from lullm.audio.transcript.segment import Segment
from lullm.audio.transcript.spoken import SpokenWord

TIMED = ("verbose_json", "srt", "vtt")
"""The forms that say when."""
GRANULARITIES = ("segment", "word")
"""What `verbose_json` can give times of."""


def verbose(
    task: str, language: str, duration_s: float, segments: Sequence[Segment], granularities: Sequence[str] = ()
) -> dict[str, Any]:
    """OpenAI's `verbose_json`. Its language is that of the text: a translation is English.

    Args:
        granularities: of its times: some of GRANULARITIES; none: 'segment'.
    """
    found: dict[str, Any] = {
        "task": task,
        "language": language_name("en" if task == "translate" else language),
        "duration": round(duration_s, 3),
        "text": text_of(segments),
    }
    if "word" in granularities:
        found["words"] = [_word_fields(word) for segment in segments for word in segment.words]
    if "segment" in granularities or not granularities:
        found["segments"] = [_fields(number, segment) for number, segment in enumerate(segments)]
    return found


def text_of(segments: Sequence[Segment]) -> str:
    """The text alone."""
    return "".join(segment.text for segment in segments).strip()


def subtitles(kind: str, segments: Sequence[Segment]) -> str:
    """`kind`: 'srt' or 'vtt'."""
    return "".join([head(kind), *(block(kind, number, segment) for number, segment in enumerate(segments))])


def head(kind: str) -> str:
    """What stands before the first block of subtitles."""
    return "WEBVTT\n\n" if kind == "vtt" else ""


def block(kind: str, number: int, segment: Segment) -> str:
    """The subtitle of a segment. `number`: from 0."""
    counter, mark = ("", ".") if kind == "vtt" else (f"{number + 1}\n", ",")
    words = segment.text.strip().replace("-->", "->")  # which would end the text
    return f"{counter}{_clock(segment.start_s, mark)} --> {_clock(segment.end_s, mark)}\n{words}\n\n"


def _fields(number: int, segment: Segment) -> dict[str, Any]:
    return {
        "id": number,
        "seek": segment.seek,
        "start": round(segment.start_s, 2),
        "end": round(segment.end_s, 2),
        "text": segment.text,
        "tokens": segment.token_ids,
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }


def _word_fields(word: SpokenWord) -> dict[str, Any]:
    return {"word": word.text, "start": round(word.start_s, 2), "end": round(word.end_s, 2)}


def _clock(seconds: float, mark: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{mark}{rest % 1000:03d}"
