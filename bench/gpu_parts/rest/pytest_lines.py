"""A pytest plugin: a line of `gpu_check.py` for every test as soon as it ends, so that a time limit takes none."""

import os
from pathlib import Path
from typing import Any

from gpu_parts.line import Lines


def pytest_configure(config: Any) -> None:
    if not hasattr(config, "workerinput"):  # the others report to this process
        lines = Lines(Path(os.environ["GPU_CHECK_LINES"]), os.environ["GPU_CHECK_ROW"])
        config.pluginmanager.register(_Reporter(lines))


class _Reporter:
    def __init__(self, lines: Lines):
        self._lines = lines

    def pytest_collection_finish(self, session: Any) -> None:
        if session.items:
            self._lines.plan([item.nodeid for item in session.items])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._lines.failed(report.nodeid, f"{report.when}: {crash.message if crash else report.longrepr}"[:300])
        elif report.skipped:
            self._lines.skipped(report.nodeid, str(report.longrepr)[-200:])
        elif report.when == "call":
            self._lines.passed(report.nodeid, seconds=round(report.duration, 2))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._lines.failed(report.nodeid, f"collect: {report.longrepr}"[-300:])
