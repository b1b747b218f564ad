"""`docs/models.md`: its table is written from the families under test, so that it cannot go stale.

`python tests/models/test_docs.py` writes it anew (with src and tests in PYTHONPATH).
"""

from pathlib import Path

from families import CASES
from golden import architecture_of

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
HEAD = "| architecture | models | features | variants beside transformers |\n|---|---|---|---|\n"


def table():
    rows = [
        f"| `{architecture_of(family)}` | {cases.models} | {cases.features} | {'; '.join(cases.variants)} |\n"
        for family, cases in CASES.items()
    ]
    return HEAD + "".join(rows)


def split(text):
    """What stands before the table, the table, and what stands behind it."""
    start = text.index(HEAD.split("\n")[0])
    end = text.index("\n\n", start) + 1
    return text[:start], text[start:end], text[end:]


def test_the_table_is_up_to_date():
    assert split(PAGE.read_text())[1] == table(), f"run {Path(__file__).name}"


if __name__ == "__main__":
    before, _, after = split(PAGE.read_text())
    PAGE.write_text(before + table() + after)
