"""docs/python.md says what the code says."""

from docs.reference import GROUPS, PAGE, page

import lullm


def test_every_public_name_has_its_place():
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(lullm.__all__)


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run: PYTHONPATH=src:tests python -m docs.reference"
