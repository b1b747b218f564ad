import random
import time

import pytest

from lullm.text.stop import StopStrings


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The slow way: try every end, and at each the longest stop string."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


def run(stop_strings: StopStrings, deltas: list[str]) -> tuple[list[str], str | None]:
    out = []
    for delta in deltas:
        result = stop_strings.push(delta)
        out.append(result.text)
        if result.stop is not None:
            return out, result.stop
    out.append(stop_strings.flush())
    return out, None


def test_random_texts_match_the_slow_way() -> None:
    rng = random.Random(1)
    for _ in range(8000):
        alphabet = rng.choice(["ab", "abc", "aä中"])
        stops = ["".join(rng.choices(alphabet, k=rng.randint(1, 5))) for _ in range(rng.randrange(5))]
        deltas = ["".join(rng.choices(alphabet, k=rng.choice([0, 1, 1, 2, 6]))) for _ in range(rng.randrange(8))]
        include = rng.random() < 0.5
        out, stop = run(StopStrings(stops, include), deltas)
        assert ("".join(out), stop) == reference("".join(deltas), stops, include), (stops, deltas, include)


def test_holds_back_exactly_what_may_be_a_beginning() -> None:
    rng = random.Random(2)
    for _ in range(3000):
        stops = ["".join(rng.choices("ab", k=rng.randint(2, 6))) for _ in range(rng.randint(1, 3))]
        stop_strings = StopStrings(stops)
        text = shown = ""
        while len(text) < 12:
            delta = rng.choice("abx")
            text += delta
            result = stop_strings.push(delta)
            if result.stop is not None:
                break
            shown += result.text
            beginnings = (n for s in stops for n in range(1, len(s)) if text.endswith(s[:n]))
            assert text == shown + text[len(text) - max(beginnings, default=0) :], (stops, text)


def test_a_match_over_several_pieces() -> None:
    stop_strings = StopStrings(["\n\nUser:"])
    assert stop_strings.push("Hi\n") == ("Hi", None)
    assert stop_strings.push("\nUs") == ("", None)
    assert stop_strings.push("er: more") == ("", "\n\nUser:")


def test_what_was_held_back_comes_when_it_was_no_match() -> None:
    stop_strings = StopStrings(["END"])
    assert stop_strings.push("the EN") == ("the ", None)
    assert stop_strings.push("TER") == ("ENTER", None)
    assert stop_strings.push("E") == ("", None)
    assert stop_strings.flush() == "E"
    assert stop_strings.flush() == ""


def test_with_the_stop_string_in_the_output_nothing_is_held_back() -> None:
    stop_strings = StopStrings(["END"], include_in_output=True)
    assert stop_strings.push("the EN") == ("the EN", None)
    assert stop_strings.push("D and on") == ("D", "END")
    assert stop_strings.flush() == ""


def test_first_complete_wins_then_the_longest() -> None:
    assert StopStrings(["abcd", "bc"]).push("xabcd") == ("xa", "bc")
    assert StopStrings(["bc", "abc"]).push("xabcd") == ("x", "abc")
    assert StopStrings(["later", "soon"]).push("soon later") == ("", "soon")


def test_after_a_match_nothing_more_comes() -> None:
    stop_strings = StopStrings(["."])
    assert stop_strings.push("a.b") == ("a", ".")
    assert stop_strings.push("c") == ("", ".")
    assert stop_strings.flush() == ""


@pytest.mark.parametrize("include", [False, True])
def test_without_stop_strings_text_passes(include: bool) -> None:
    stop_strings = StopStrings((), include)
    assert stop_strings.push("") == ("", None)
    assert stop_strings.push("anything") == ("anything", None)
    assert stop_strings.flush() == ""


def test_the_largest_allowed_set_is_fast_and_independent_of_the_text_so_far() -> None:
    # 64 strings that agree in their first 1,000 characters, and a text that always nearly matches: the worst case.
    stops = ["a" * 1000 + f"{n:024d}" for n in range(64)]
    stop_strings = StopStrings(stops)
    stop_strings.push("a" * 1100)
    started = time.perf_counter()
    for _ in range(500):
        stop_strings.push("aaaa")
    assert time.perf_counter() - started < 3  # about 0.1 s; by searching the text anew it is minutes
    assert stop_strings.push(f"{7:024d}").stop == stops[7]


def test_one_huge_piece() -> None:
    text = "ab" * 200_000
    assert StopStrings(["abb"]).push(text + "abb!") == (text, "abb")
