"""Libraries that cannot be imported, and those that end the process at it."""

from lullm.machine.imports import failed_imports


def test_each_that_fails_has_its_reason(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, code in (
        ("works", "print('>fails_early')"),
        ("lacks", "raise ImportError('libsome.so.9: cannot open\\nshared object file')"),
        ("dies", "import os; os.abort()"),
        ("leaves", "raise SystemExit(0)"),
    ):
        (tmp_path / f"{name}_here.py").write_text(code)
    failed = failed_imports(["works_here", "lacks_here", "dies_here", "leaves_here", "absent_here", "json"])
    assert failed == {
        "lacks_here": "ImportError: libsome.so.9: cannot open shared object file",
        "dies_here": "its import ends the process (exit code -6)",
        "leaves_here": "SystemExit: 0",
        "absent_here": "ModuleNotFoundError: No module named 'absent_here'",
    }
