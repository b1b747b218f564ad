"""The Python blocks of README and docs are Python, use names that exist, and run, unless they say why not."""

import ast
import importlib

import openai
import pytest
from docs.markdown import PAGES, URL, blocks

import lullm

BLOCKS = {block.name: block for block in blocks() if block.kind == "python"}
RUN = [name for name, block in BLOCKS.items() if block.mark is None]


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_python_with_names_that_exist(name):
    for node in ast.walk(ast.parse(BLOCKS[name].text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lullm":
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


@pytest.mark.parametrize("name", RUN)
def test_a_block_runs(name, here, server, capsys):
    text = URL.sub(server, BLOCKS[name].text)
    names: dict = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), names)
    for value in list(names.values()):
        if isinstance(value, lullm.LLM):
            value.shutdown()
        elif isinstance(value, openai.OpenAI):
            value.close()
    assert "print(" not in text or capsys.readouterr().out.strip()


def test_the_public_names_are_documented():
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in lullm.__all__ if name not in text] == []
