"""Merge rules: combine the answers of several workers, in rank order, or of engines. Pure functions."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from lullm.errors import LullmError
from lullm.executor.workers import Answer
from lullm.types.sleep import TAGS, Released, SleepForecast, SleepReport, WakeReport

Report = TypeVar("Report", Released, SleepForecast, SleepReport, WakeReport)
T = TypeVar("T")


def values(answers: Sequence[Answer]) -> list[Any]:
    """The values. Raises the error of the first worker that failed; the others' errors are notes on it."""
    failed = [(rank, answer.error) for rank, answer in enumerate(answers) if answer.error is not None]
    if failed:
        (_, first), *others = failed
        for rank, error in others:
            first.add_note(f"worker {rank} failed, too: {type(error).__name__}: {error}")
        raise first
    return [answer.value for answer in answers]


def minimum(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The minimum of each side: blocks that fit everywhere."""
    firsts, seconds = zip(*pairs, strict=True)
    return min(firsts), min(seconds)


def agreed(found: Sequence[T], what: str) -> T:
    """The one value that all workers gave. Raises LullmError: they differ, so the workers are out of step."""
    if any(value != found[0] for value in found):
        raise LullmError(f"the workers disagree about {what}: {list(found)}")
    return found[0]


def merged_reports(parts: Sequence[Report]) -> Report:
    """One report of simultaneous actions: sums of bytes, the longest of times, the tags of all.

    Other fields are those of the first report that has them.
    """

    def merged(name: str) -> Any:
        found = [getattr(part, name) for part in parts]
        if name == "tags":
            return merged_tags(found)
        if name.endswith("bytes"):
            return sum(found)
        return max(found) if name.endswith("seconds") else next((each for each in found if each is not None), None)

    return type(parts[0])(**{field.name: merged(field.name) for field in dataclasses.fields(parts[0])})


def merged_tags(parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The tags that any of them names, in the order of `TAGS`."""
    return tuple(tag for tag in TAGS if any(tag in part for part in parts))
