"""The seam: it loads no torch, and both of its sides have every verb."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_args

from kit.worker.fakes import FakeWorker

import lullm.engine
from lullm.executor.merged import MergedExecutor
from lullm.executor.protocol import Executor, WorkerVerb
from lullm.executor.uniproc import UniProcExecutor
from lullm.worker.extension import REMOTE_METHODS
from lullm.worker.worker import Worker


def test_it_loads_no_torch():
    code = "import lullm.executor.protocol, lullm.executor.merge, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_workers_have_every_verb_with_the_fakes_parameters():
    for verb in get_args(WorkerVerb):
        parameters = list(inspect.signature(getattr(Worker, verb)).parameters)
        assert parameters == list(inspect.signature(getattr(FakeWorker, verb)).parameters), verb
    for method in REMOTE_METHODS:
        assert callable(getattr(Worker, method))


def test_executors_have_every_verb_of_the_protocol():
    verbs = [name for name in vars(Executor) if not name.startswith("_")]
    assert {"prepare_sleep", "launch_model", "weights_version"} <= set(verbs)
    for name in verbs:
        for kind in (MergedExecutor, UniProcExecutor):
            found, wanted = getattr(kind, name), getattr(Executor, name)
            if callable(wanted):
                assert inspect.signature(found).parameters.keys() == inspect.signature(wanted).parameters.keys()
            else:
                assert isinstance(found, property)


def test_the_engine_names_no_kind_of_executor():
    kinds = ("uniproc", "merged", "LocalWorkers")
    for path in Path(lullm.engine.__path__[0]).glob("*.py"):
        assert not any(kind in path.read_text() for kind in kinds), f"{path.name}: only the factory knows the kinds"
