"""How many tests there are, read from their source: the figures of docs/reliability.md.

python -m docs.counts
"""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src" / "lullm"
CASES = "parametrize"


def counts() -> dict[str, int]:
    """What is counted -> how much of it."""
    files = sorted(TESTS.rglob("*.py"))
    functions = [function for path in files for function in _test_functions(path)]
    drawn = [path for path in files if path.name.startswith("test_") and _draws(path)]
    return {
        "test functions": len(functions),
        "of them with several cases": sum(map(_has_cases, functions)),
        "test files": sum(path.name.startswith("test_") for path in files),
        "test files with random workloads": len(drawn),
        "lines of tests": sum(map(_num_lines, files)),
        "lines of Python under test": sum(map(_num_lines, SOURCE.rglob("*.py"))),
    }


def _test_functions(path: Path) -> list[ast.FunctionDef]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def _has_cases(function: ast.FunctionDef) -> bool:
    return bool(function.decorator_list)


def _draws(path: Path) -> bool:
    """Whether a test draws what it does from a seed."""
    text = path.read_text()
    return "Random(" in text or "random_prompts(" in text or "default_rng(" in text


def _num_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


if __name__ == "__main__":
    for what, number in counts().items():
        print(f"{number:>8,} {what}")
