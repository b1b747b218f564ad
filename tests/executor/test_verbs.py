"""The seam between an engine and its workers: it loads no torch, and workers have every verb."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_args

from kit.worker.fakes import FakeWorker

import lullm.engine
from lullm.executor.workers import WorkerVerb
from lullm.worker.remote_methods import REMOTE_METHODS
from lullm.worker.worker import Worker


def test_it_loads_no_torch():
    code = "import lullm.executor.executor, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_workers_have_every_verb_with_the_fakes_parameters():
    for verb in get_args(WorkerVerb):
        parameters = list(inspect.signature(getattr(Worker, verb)).parameters)
        assert parameters == list(inspect.signature(getattr(FakeWorker, verb)).parameters), verb
    for method in REMOTE_METHODS:
        assert callable(getattr(Worker, method))


def test_the_engine_names_no_kind_of_executor():
    kinds = ("uniproc", "UniProcExecutor", "LocalWorkers")
    for path in Path(lullm.engine.__path__[0]).glob("*.py"):
        assert not any(kind in path.read_text() for kind in kinds), f"{path.name}: only the factory knows the kinds"
