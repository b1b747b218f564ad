"""SleepLadder and its spelling, by a clock of our own."""

import pytest

from lullm.config.option.sleep_after import SleepRung, parse_duration, parse_sleep_after
from lullm.engine.thread.ladder import LIGHTEST, SleepLadder
from lullm.errors import ConfigError

LIGHT, DEEP, DEEPEST = (
    SleepRung(60, 1, "auto"),
    SleepRung(600, 1, "disk"),
    SleepRung(3600, 2, "auto"),
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ladder(clock):
    return SleepLadder((LIGHT, DEEP, DEEPEST), clock)


def after(clock, seconds):
    clock.now += seconds


@pytest.mark.parametrize(
    ("text", "rungs"),
    [
        ("60s:1", (LIGHT,)),
        ("60s:1,10m:disk", (LIGHT, DEEP)),
        (" 1m:1 , 600s:disk,1h:2 ", (LIGHT, DEEP, DEEPEST)),
        ("250ms:ram", (SleepRung(0.25, 1, "ram"),)),
        ("1h30m:2", (SleepRung(5400, 2, "auto"),)),
        (".5s:disk,1.5s:2", (SleepRung(0.5, 1, "disk"), SleepRung(1.5, 2, "auto"))),
    ],
)
def test_spelling(text, rungs):
    assert parse_sleep_after(text) == rungs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "TIME:DEPTH"),
        ("60s", "TIME:DEPTH"),
        ("60s:1,", "TIME:DEPTH"),
        ("60s:0", "depth of 1, ram, disk, 2"),
        ("60s:3", "TIME:DEPTH"),
        ("60s:Disk", "TIME:DEPTH"),
        ("60:1", "'60' is not a time"),
        ("60 s:1", "is not a time"),
        ("s:1", "is not a time"),
        ("1d:1", "is not a time"),
        ("1e3s:1", "is not a time"),
        ("0s:1", "above 0"),
        ("-1s:1", "above 0"),
        ("9" * 400 + "h:1", "above 0"),
        ("60s:1,60s:disk", "later than"),
        ("60s:1,1m:2", "later than"),
        ("60s:disk,2m:1", "deeper than"),
        ("60s:1,2m:ram", "deeper than"),
        ("60s:2,2m:2", "deeper than"),
    ],
)
def test_misspelling(text, words):
    with pytest.raises(ConfigError, match="sleep_after") as error:
        parse_sleep_after(text)
    assert words in str(error.value)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1h1m1s1ms", 3661.001), ("-1m", -60), ("+2s", 2)])
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


def test_rungs_come_one_after_the_other_and_once(ladder, clock):
    assert ladder.due() is None and ladder.next() == (LIGHT, 60)
    after(clock, 59.5)
    assert ladder.due() is None and ladder.next() == (LIGHT, 0.5) and ladder.idle_s == 59.5
    after(clock, 0.5)
    assert ladder.due() is LIGHT and ladder.due() is None
    assert ladder.next() == (DEEP, 540)
    after(clock, 541)
    assert ladder.due() is DEEP
    after(clock, 9999)
    assert ladder.due() is DEEPEST
    assert ladder.next() is None and ladder.due() is None


def test_a_late_look_takes_the_deepest_rung(ladder, clock):
    after(clock, 700)
    assert ladder.due() is DEEP
    assert ladder.next() == (DEEPEST, 2900)


def test_requests_start_it_anew(ladder, clock):
    after(clock, 61)
    assert ladder.due() is LIGHT
    ladder.busy()
    after(clock, 5000)
    assert ladder.next() is None and ladder.due() is None and ladder.idle_s == 0
    ladder.idle()
    after(clock, 30)
    ladder.idle()  # said again, it starts nothing anew
    assert ladder.next() == (LIGHT, 30)
    ladder.busy()
    ladder.idle()
    assert ladder.next() == (LIGHT, 60)


def test_a_call_by_hand_starts_it_anew(ladder, clock):
    after(clock, 61)
    assert ladder.due() is LIGHT
    after(clock, 100)
    ladder.reset()
    assert ladder.next() == (LIGHT, 60) and ladder.idle_s == 0
    ladder.busy()
    ladder.reset()
    assert ladder.next() is None, "requests run"


def test_keep_alive(ladder, clock):
    ladder.keep_alive(300)
    assert ladder.next() == (LIGHT, 300)
    after(clock, 300)
    assert ladder.due() is LIGHT
    assert ladder.next() == (DEEP, 540), "as far from the first as in the ladder"
    ladder.busy()
    ladder.keep_alive(0)
    assert ladder.due() is None, "not before the request has ended"
    ladder.idle()
    assert ladder.due() is LIGHT and ladder.next() == (DEEP, 540)
    ladder.busy()
    ladder.keep_alive(-1)
    ladder.idle()
    after(clock, 1e6)
    assert ladder.next() is None and ladder.due() is None, "never"
    ladder.keep_alive(None)
    assert ladder.due() is DEEPEST, "the next request's wish holds"


def test_rungs_that_are_reached_already_are_left_out(ladder, clock):
    ladder.skip(lambda rung: rung.backup != "disk")
    assert ladder.next() == (DEEP, 600), "no rung behind it is looked at"
    ladder.skip(lambda rung: True)
    assert ladder.next() is None
    ladder.reset()
    assert ladder.next() == (LIGHT, 60)


def test_a_call_by_hand_ends_the_wishes_of_requests(ladder, clock):
    ladder.keep_alive(-1)
    ladder.reset()
    assert ladder.next() == (LIGHT, 60)


def test_without_rungs_a_request_says_when(clock):
    ladder = SleepLadder((), clock)
    ladder.keep_alive(300)
    assert ladder.next() == (LIGHTEST, 300)
    after(clock, 300)
    assert ladder.due() is LIGHTEST and ladder.next() is None
    for wish in (-1, None):
        ladder.busy()
        ladder.keep_alive(wish)
        ladder.idle()
        after(clock, 1e6)
        assert ladder.next() is None and ladder.due() is None, wish


def test_without_rungs_nothing_ever_happens(clock):
    ladder = SleepLadder((), clock)
    after(clock, 1e9)
    assert not ladder and ladder.next() is None and ladder.due() is None and ladder.idle_s == 1e9
