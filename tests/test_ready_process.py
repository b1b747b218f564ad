"""Processes that start in milliseconds are as fresh ones."""

import os
import sys

import pytest
from kit import ready_process


@pytest.fixture(scope="module")
def own_start(tmp_path_factory):
    """The folder of a `sitecustomize.py` that the suite runs under; its server started beside a test's path."""
    own, tests = tmp_path_factory.mktemp("own"), tmp_path_factory.mktemp("of_a_test")
    (own / "sitecustomize.py").write_text("import builtins; builtins.started_by = 'suite'")
    (tests / "strange.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ready_process, "_servers", {})
        patch.setattr(ready_process, "_FOLDERS", os.pathsep.join([str(own), ready_process._FOLDERS]))
        with pytest.MonkeyPatch.context() as path:
            path.syspath_prepend(tests)
            ready_process._server()
        yield own
        for server in ready_process._servers.values():
            server.close()


def test_what_a_test_puts_on_its_path_is_not_on_that_of_later_forks(own_start):
    """bench/executor.py hid tests/executor from all forks, if a test of bench/ was the first to start one."""
    run = ready_process.ready_run([sys.executable, "-c", "import torch, strange"])
    assert run.returncode == 1 and "No module named 'strange'" in run.stderr


def test_an_own_start_is_in_all_forks(own_start):
    """Under one, each process of an engine imported torch anew."""
    assert what_is_there(own_start) == "suite True\n"


def test_another_one_is_run_by_a_fresh_process(own_start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.started_by = 'test'")
    assert what_is_there(tmp_path) == "test False\n"


@pytest.mark.parametrize("variables", [{}, ready_process.CHILDREN_TOO])
def test_children_are_ready_if_asked_for(own_start, variables):
    """They end as others do, with their status and all that they print."""
    code = (
        "import subprocess, sys; inner = {!r}; sys.exit(subprocess.run([sys.executable, '-c', inner]).returncode + 1)"
    )
    inner = "import sys; print('torch' in sys.modules, flush=True); print('said', file=sys.stderr); sys.exit(3)"
    run = ready_process.ready_run([sys.executable, "-c", code.format(inner)], env=os.environ | variables)
    assert (run.returncode, run.stdout, run.stderr) == (4, f"{bool(variables)}\n", "said\n")


def what_is_there(folder) -> str:
    env = os.environ | {"PYTHONPATH": str(folder)}
    words = [sys.executable, "-c", "import sys; print(started_by, 'torch' in sys.modules)"]
    return ready_process.ready_run(words, env=env).stdout
