"""docs/reliability.md: its counts are those of today, rounded, and every fuzz target has its row."""

import re
from pathlib import Path

from docs.counts import counts
from fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def test_counts_are_not_stale():
    """The page rounds down; once there is a quarter more, it is told."""
    for what, actual in counts().items():
        found = re.search(rf"^\| ([0-9,]+) \| {re.escape(what)} \|$", PAGE, re.M)
        assert found, f"docs/reliability.md has no row for {what}; see `python -m docs.counts`"
        said = int(found[1].replace(",", ""))
        assert said <= actual <= 1.25 * said, f"docs/reliability.md says {said} {what}, there are {actual}"


def test_every_fuzz_target_has_its_row():
    assert set(re.findall(r"^\| `make fuzz TARGET=(\w+)`", PAGE, re.M)) == set(TARGETS)
