"""The tables of docs/ are those that the code gives."""

import pytest
from docs.markdown import ROOT
from docs.tables import Part, parts

from lullm.config.family.table import FAMILIES


@pytest.mark.parametrize("part", parts(), ids=lambda part: f"{part.page}-{part.start[:20]}")
def test_a_part_of_a_page_is_fresh(part: Part):
    _, found, _ = part.split()
    assert found == part.make(), "run `python -m docs.tables`"


def test_the_number_of_architectures():
    assert f"| models | {len(FAMILIES)} architectures," in (ROOT / "README.md").read_text()
