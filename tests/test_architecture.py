"""The house rules, read from the code: arrows point down, no torch below L3, no global, no pickle, no fixed port."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "lullm"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = [
    "units", "errors", "log", "machine",
    "types", "config",
    "text", "kv", "sched", "draw",
    "arena", "ops", "nn", "weights", "models",
    "device", "sampling", "step", "worker",
    "executor", "engine",
    "llm", "server", "demo", "cli",
]  # fmt: skip
"""In a strict order: a room imports only rooms that stand before it."""
PLACES = {room: place for place, room in enumerate(ROOMS)}
TORCH_FREE = {*ROOMS[: PLACES["arena"]], "server"}
# Modules of a higher level that a torch-free room may import, because they load no torch themselves.
TORCH_FREE_ABOVE = {"lullm.engine.protocol"}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "lullm"


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, only_top_level: bool = False) -> list[str]:
    nodes = tree.body if only_top_level and isinstance(tree, ast.Module) else ast.walk(tree)
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.append(node.module or "")
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_file(path):
    source = path.read_text()
    tree = ast.parse(source)
    module = module_of(path)
    own = room(module)
    assert ast.get_docstring(tree), "every room explains itself in its first lines"
    assert own == "lullm" or own in PLACES, f"the room {own} has no place"
    for name in imports(tree):
        top = name.split(".")[0]
        assert top not in {"pickle", "cloudpickle", "dill", "marshal", "shelve"}, f"{name}: no pickle on any wire"
        if own in TORCH_FREE:
            assert top not in {"torch", "safetensors", "transformers"}, f"{own} loads no torch"
        if top == "lullm" and own != "lullm" and room(name) in PLACES:
            assert PLACES[room(name)] <= PLACES[own], f"the arrow {module} -> {name} points up"
            if own in TORCH_FREE:
                allowed = room(name) in TORCH_FREE or any(name.startswith(m) for m in TORCH_FREE_ABOVE)
                assert allowed, f"{module} -> {name} would load torch"
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), "no global"
    words = re.sub(r'""".*?"""|#[^\n]*', "", source, flags=re.S)
    allowed_cuda = own in {"ops", "config", "cli"} or (own, path.name) == ("device", "choice.py") or "cuda" in path.name
    assert allowed_cuda or not re.search(r"\bcuda\b", words), "the word cuda lives in a few places only"
    assert not re.search(r"/tmp/|/dev/shm", words), "no fixed path outside the project"


def test_no_cycles():
    graph = {}
    for path in FILES:
        names = imports(ast.parse(path.read_text()), only_top_level=True)
        modules = {module_of(p) for p in FILES}
        graph[module_of(path)] = {name for name in names if name in modules} - {module_of(path)}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for target in graph[module]:
                visit(target, (*path, module))
            done.add(module)

    for module in graph:
        if module != "lullm":
            visit(module, ())


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_import_lullm_loads_no_torch():
    assert run_python("import lullm, sys; lullm.SamplingParams; print('torch' in sys.modules)") == "False"


def test_server_loads_no_torch():
    assert run_python("import lullm.server.app, sys; print('torch' in sys.modules)") == "False"
