"""Merge rules: how the answers of several workers, in rank order, become one. Pure functions; nothing else merges."""

from collections.abc import Sequence
from typing import Any, TypeVar

from lullm.errors import LullmError
from lullm.executor.protocol import Answer
from lullm.types.sleep import Released, SleepForecast

Number = TypeVar("Number", int, float)
T = TypeVar("T")


def values(answers: Sequence[Answer]) -> list[Any]:
    """The values. Raises the error of the first worker that failed; those of the others are notes on it."""
    failed = [(rank, answer.error) for rank, answer in enumerate(answers) if answer.error is not None]
    if failed:
        (_, first), *others = failed
        for rank, error in others:
            first.add_note(f"worker {rank} failed, too: {type(error).__name__}: {error}")
        raise first
    return [answer.value for answer in answers]


def minimum(pairs: Sequence[tuple[Number, Number]]) -> tuple[Number, Number]:
    """The minimum of each side: blocks that fit everywhere, or the speeds of the slowest."""
    firsts, seconds = zip(*pairs, strict=True)
    return min(firsts), min(seconds)


def agreed(found: Sequence[T], what: str) -> T:
    """The one value that all workers gave. Raises LullmError: they differ, so that the workers are out of step."""
    if any(value != found[0] for value in found):
        raise LullmError(f"the workers disagree about {what}: {list(found)}")
    return found[0]


def merged_release(reports: Sequence[Released]) -> Released:
    """Bytes of all workers, the seconds of the slowest, and the first refusal by rank."""
    return Released(
        _all_tags(reports),
        sum(report.freed_bytes for report in reports),
        sum(report.backed_up_bytes for report in reports),
        max(report.seconds for report in reports),
        next((report.refusal for report in reports if report.refusal is not None), None),
    )


def merged_forecast(forecasts: Sequence[SleepForecast]) -> SleepForecast:
    """Bytes of all workers, the seconds of the slowest."""
    return SleepForecast(
        forecasts[0].level,
        _all_tags(forecasts),
        sum(forecast.frees_bytes for forecast in forecasts),
        sum(forecast.backs_up_bytes for forecast in forecasts),
        max(forecast.sleep_seconds for forecast in forecasts),
        max(forecast.wake_seconds for forecast in forecasts),
    )


def _all_tags(reports: Sequence[Released] | Sequence[SleepForecast]) -> tuple[str, ...]:
    """Every tag that any worker names, once, in the order of the first that does."""
    return tuple(dict.fromkeys(tag for report in reports for tag in report.tags))
