"""The links of README and docs lead to files and headings that exist."""

import re

import pytest
from docs.markdown import PAGES


def anchors_of(page):
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for file, anchor in re.findall(r"\]\(((?!http)[^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        assert not anchor or target.suffix != ".md" or anchor in anchors_of(target), f"{file}#{anchor}"
