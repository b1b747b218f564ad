"""The links of README and docs lead to files and headings that exist, and the tests that they name are there."""

import re

import pytest
from docs.markdown import PAGES, ROOT

TEXT = "\n".join(page.read_text() for page in PAGES)
SOURCE = ROOT / "src" / "lullm"
ROOMS = "|".join(sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name[0] != "_"))


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


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:tests|bench)/[^`:* ]+)", TEXT))))
def test_what_a_page_names_exists(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("path", sorted(set(re.findall(rf"`((?:{ROOMS})/[\w/.]*)`", TEXT))))
def test_sources_that_a_page_names_exist(path):
    """A module may stand there without its `.py`."""
    assert (SOURCE / path).exists() or (SOURCE / f"{path}.py").exists()


@pytest.mark.parametrize("path, name", sorted(set(re.findall(r"`(tests/[^`: ]+)::(\w+)`", TEXT))))
def test_tests_that_a_page_names_exist(path, name):
    assert f"def {name}(" in (ROOT / path).read_text()
