"""The house rules, read from the code: arrows point down, no torch below L3, no global, no pickle, no fixed port."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "lullm"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = [
    "version", "units", "errors", "log", "machine",
    "types", "config",
    "text", "vision", "audio", "kv", "sched", "draw", "metrics",
    "arena", "collective", "ops", "nn", "weights", "models",
    "device", "sampling", "step", "worker",
    "executor", "engine",
    "fleet",
    "llm", "server", "cli",
]  # fmt: skip
"""In a strict order: a room imports only rooms that stand before it."""
TOP = ("lullm", "lullm.__main__")
PLACES = {room: place for place, room in enumerate(ROOMS)}
TORCH_FREE = {*ROOMS[: PLACES["arena"]], "server"}
LONGEST_FILE = 350  # lines
LARGEST_ROOM = 12  # files beside each other
WORD_CUDA = re.compile(r"(?<![a-zA-Z])cuda(?![a-zA-Z])")
"""As a word or as a part of a name, such as `is_cuda`."""
# Modules of a higher level that a torch-free room may import, because they load no torch themselves.
TORCH_FREE_ABOVE = {"lullm.engine.client", "lullm.fleet"}


def room(module: str) -> str:
    return module.split(".")[1] if module not in TOP else "lullm"


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(tree: ast.AST) -> list[str]:
    """Everything that is imported anywhere: in functions, and for annotations (`TYPE_CHECKING`), too."""
    found = []
    for node in ast.walk(tree):
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
    tree = tree_of(path)
    module = module_of(path)
    own = room(module)
    assert ast.get_docstring(tree), "every room explains itself in its first lines"
    assert len(source.splitlines()) <= LONGEST_FILE, "there are two ideas in it: give each a file"
    assert own == "lullm" or own in PLACES, f"the room {own} has no place"
    for name in imports(tree):
        top = name.split(".")[0]
        assert top not in {"pickle", "cloudpickle", "dill", "marshal", "shelve"}, f"{name}: no pickle on any wire"
        assert top not in {"training", "kit"}, f"{name} is no part of the wheel"
        if own in TORCH_FREE:
            assert top not in {"torch", "safetensors", "transformers"}, f"{own} loads no torch"
        if name == "lullm" and own != "lullm":
            assert PLACES[own] >= PLACES["llm"], f"{module} imports the package's top, which names what is above it"
        if top == "lullm" and own != "lullm" and room(name) in PLACES:
            assert PLACES[room(name)] <= PLACES[own], f"the arrow {module} -> {name} points up"
            if own in TORCH_FREE:
                allowed = room(name) in TORCH_FREE or any(name.startswith(m) for m in TORCH_FREE_ABOVE)
                assert allowed, f"{module} -> {name} would load torch"
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), "no global"
    words = re.sub(r'""".*?"""|#[^\n]*', "", source, flags=re.S)
    allowed_cuda = own in {"ops", "config", "cli"} or (own, path.name) == ("device", "choice.py") or "cuda" in path.name
    assert allowed_cuda or not WORD_CUDA.search(words), "the word cuda lives in a few places only"
    assert not re.search(r"/tmp/|/dev/shm", words), "no fixed path outside the project"


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=lambda p: p.name)
def test_a_room_is_seen_at_a_glance(folder):
    files = [path.name for path in FILES if path.parent == folder and path.name != "__init__.py"]
    assert len(files) <= LARGEST_ROOM, "there are two rooms in it: give each a folder"


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One way through the arrows that ends where it begins; empty: there is none."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        found: list[str] = []
        if module not in done:
            for target in sorted(graph[module]):
                found = found or visit(target, [*path, module])
            done.add(module)
        return found

    return next(filter(None, (visit(module, []) for module in sorted(graph))), [])


def arrows(of: Callable[[str], str]) -> dict[str, set[str]]:
    """What imports what: files with `of` `str`, rooms with `of` `room`. The package's top names what is in it."""
    modules = {module_of(path) for path in FILES} - {"lullm"}
    graph: dict[str, set[str]] = {of(module): set() for module in modules}
    for path in FILES:
        module = module_of(path)
        if module in modules:
            names = {of(name) for name in imports(tree_of(path)) if name in modules}
            graph[of(module)] |= names - {of(module)}
    return graph


@pytest.mark.parametrize("of", [str, room], ids=["files", "rooms"])
def test_no_circles(of):
    assert circle(arrows(of)) == []


def test_circles_are_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    source = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lullm.a import B\ndef f():\n    import lullm.c\n"
    )
    assert {"lullm.a", "lullm.a.B", "lullm.c"} <= set(imports(ast.parse(source)))


@pytest.mark.parametrize(("source", "is_word"), [("x.is_cuda", True), ("'cuda:0'", True), ("cudart", False)])
def test_the_word_cuda_is_found_in_names(source, is_word):
    assert bool(WORD_CUDA.search(source)) is is_word


@functools.cache
def words_of(room: str) -> set[str]:
    return set(re.findall(r"\w+", "".join(p.read_text() for p in PACKAGE.glob(f"{room}/**/*.py"))))


def test_modules_that_comments_name_exist():
    """Such as `sampling.truncation`; `engine.config` is an attribute. A comment still named a file's room of before."""
    modules = {module_of(path) for path in FILES}
    wrong = [
        f"{path.relative_to(PACKAGE)}: `{first}.{second}`"
        for path in FILES
        for first, second in re.findall(r"`(?:lullm\.)?([a-z]+)\.([a-z_0-9]+)[.A-Za-z_]*`", path.read_text())
        if first in ROOMS and f"lullm.{first}.{second}" not in modules and second not in words_of(first)
    ]
    assert not wrong, "the rooms have no such modules or names"


@pytest.mark.parametrize("name", [name for name in ROOMS if (PACKAGE / name).is_dir()])
def test_a_room_says_what_its_files_and_folders_are_for(name):
    named = set(re.findall(r"`([a-z_0-9]+)/?[a-z_/]*`", (PACKAGE / name / "__init__.py").read_text()))
    folders = {path.parent.name for path in PACKAGE.glob(f"{name}/*/__init__.py")}
    files = {path.stem for path in PACKAGE.glob(f"{name}/*.py")} - {"__init__"}
    assert folders | files <= named, "its __init__.py is the room's map"


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_import_lullm_loads_no_torch():
    assert run_python("import lullm, sys; lullm.SamplingParams; print('torch' in sys.modules)") == "False"


def test_what_servers_and_scripts_import_loads_no_torch():
    """One after the other in one process, and the first that loads it is named."""
    modules = [
        "lullm.llm.llm",
        "lullm.executor.executor",
        "lullm.engine.client",
        "lullm.fleet.fleet",
        "lullm.server.app",
    ]
    code = (
        "import importlib, sys; "
        f"print([importlib.import_module(m).__name__ for m in {modules} if 'torch' not in sys.modules])"
    )
    assert run_python(code + "; print('torch' in sys.modules)") == f"{modules}\nFalse"


def test_tests_do_not_import_what_a_script_of_bench_hides():
    """Tests of the scripts put `bench` on the path: then `vision` is bench/vision.py, whatever order tests run in."""
    root = Path(__file__).parent
    hiding = "|".join(sorted(path.stem for path in (root.parent / "bench").glob("*.py") if (root / path.stem).is_dir()))
    assert hiding
    files = (path for room in root.iterdir() if room.is_dir() and room.name != "bench" for path in room.rglob("*.py"))
    found = [str(path) for path in files if re.search(rf"^(from|import) ({hiding})\b", path.read_text(), re.MULTILINE)]
    assert not found, "move what they share into tests/kit"
