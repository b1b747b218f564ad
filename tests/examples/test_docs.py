"""The Python blocks of README and docs/ are Python, and use names that exist; those of the first page run."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import lullm

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    (f"{page.name}-{number}", block)
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))
]
RUN = ("README.md-0", "from-vllm.md-0", "guided.md-0")
"""Blocks that are whole programs with the demo model."""


@pytest.mark.parametrize(("name", "block"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_a_block_is_python_with_names_that_exist(name, block):
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lullm":
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


@pytest.mark.parametrize("name", RUN)
def test_a_block_runs(name, capsys):
    exec(compile(dict(BLOCKS)[name], name, "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_public_names_are_documented():
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in lullm.__all__ if name not in text] == []
