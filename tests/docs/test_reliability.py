"""docs/reliability.md: every test and folder that it names exists, and its counts are those of today, rounded."""

import re
from pathlib import Path

import pytest
from docs.counts import counts
from fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


@pytest.mark.parametrize("what", counts())
def test_counts_are_not_stale(what):
    """The page rounds down; once there is a quarter more, it is told."""
    found = re.search(rf"^\| ([0-9,]+) \| {re.escape(what)} \|$", PAGE, re.M)
    assert found, f"docs/reliability.md has no row for {what}; see `python -m docs.counts`"
    said, actual = int(found[1].replace(",", "")), counts()[what]
    assert said <= actual <= 1.25 * said, f"docs/reliability.md says {said}, there are {actual}"


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:tests|docs|bench)/[^`:* ]+)", PAGE))))
def test_what_the_page_names_exists(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("path, name", sorted(set(re.findall(r"`(tests/[^`: ]+)::(\w+)`", PAGE))))
def test_tests_that_the_page_names_exist(path, name):
    assert f"def {name}(" in (ROOT / path).read_text()


def test_every_fuzz_target_has_its_row():
    assert set(re.findall(r"^\| `make fuzz TARGET=(\w+)`", PAGE, re.M)) == set(TARGETS)
