"""Processes that start in milliseconds are as fresh ones."""

import sys

from kit import ready_process


def test_what_a_test_puts_on_its_path_is_not_on_that_of_later_forks(tmp_path, monkeypatch):
    """bench/executor.py hid tests/executor from all forks, if a test of bench/ was the first to start one."""
    (tmp_path / "strange.py").write_text("")
    monkeypatch.setattr(ready_process, "_servers", {})
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        run = ready_process.ready_run([sys.executable, "-c", "import strange"])
    assert run.returncode == 1 and "No module named 'strange'" in run.stderr
    for server in ready_process._servers.values():
        server.close()
