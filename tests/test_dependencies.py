"""pyproject.toml declares each library that the code and its tests import: `make test` installs nothing else."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_OTHERS = {"pydantic", "pydantic_core", "starlette", "markupsafe"}
"""What fastapi and jinja2 bring along."""
BY_HAND = {"mistral_common", "regex", "tiktoken"}
"""Of scripts that write a test's data, which the suite does not run."""


def declared(requirements):
    """As modules are called."""
    names = [re.match(r"[\w.-]+", requirement)[0] for requirement in requirements]
    modules = {"pyyaml": "yaml", "pillow": "PIL", "opentelemetry-sdk": "opentelemetry"}
    return {modules.get(name, name.replace("-", "_")) for name in names} | OF_OTHERS


def imported(folder):
    """Module -> a file that imports it, without Python's own modules and those beside the file."""
    files = sorted(folder.rglob("*.py"))
    beside = {path.stem for path in files} | {path.name for path in folder.rglob("*") if path.is_dir()}
    beside |= {path.stem for path in (ROOT / "bench").iterdir()}  # whose scripts have tests
    found = {}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            found |= {name.partition(".")[0]: str(path.relative_to(ROOT)) for name in names}
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names | beside | {"lullm"}}


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_every_library_is_declared(folder):
    """compressed-tensors was missing: on a fresh machine the suite ended while it was collected."""
    optional = PROJECT["optional-dependencies"]
    extras = [each for name in ("gguf", "otel", "ray", "transformers", "triton", "vision") for each in optional[name]]
    known = declared([*PROJECT["dependencies"], *extras])
    if folder == "tests":
        known |= declared(optional["test"]) | BY_HAND
    found = imported(ROOT / folder)
    assert len(found) > 10
    assert {name: path for name, path in found.items() if name not in known} == {}


def test_every_dependency_has_its_reason():
    table = (ROOT / "docs" / "dependencies.md").read_text()
    named = set(re.findall(r"[\w-]+", " ".join(row.split("|")[1] for row in table.splitlines() if row.count("|") > 2)))
    requirements = [
        *PROJECT["dependencies"],
        *(each for extra in PROJECT["optional-dependencies"].values() for each in extra),
    ]
    stated = {re.match(r"[\w.-]+", requirement)[0] for requirement in requirements} - {"lullm"}
    assert stated - named == set()
