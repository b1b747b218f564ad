"""The rendering process: started when needed, one for all requests, killed at its bounds, never left behind."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

from lullm.errors import LullmError
from lullm.text.template.failure import Broken, Failed, Forbidden, OutOfBounds, Rejected, WouldBlock
from lullm.text.template.process import ProcessBounds, RenderProcess
from lullm.text.template.renderer import Renderer
from lullm.units import MIB

BOUNDS = ProcessBounds(cpu_s=0.2, memory_bytes=128 * MIB, max_size=1_000_000)
ENDLESS = "{% for i in range(10**9) %}{% endfor %}"
SOURCES = {
    "echo": "{{ x }}",
    "big": "{{ [1] | batch(10**9, 1) | list | length }}",
    "endless": ENDLESS,
    "refuses": "{{ raise_exception('no ' ~ x) }}",
    "steals": "{{ x.append(1) }}",
    "fails": "{{ x.y.z }}",
}


def children() -> set[str]:
    """Process ids of this process's rendering processes, dead ones that nobody waited for included."""
    return all_children() - OTHERS


def all_children() -> set[str]:
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


OTHERS: set[str] = set()
"""Children that were there before a test, such as a server that the tests of the docs share."""


@pytest.fixture(autouse=True)
def others():
    OTHERS.clear()
    OTHERS.update(all_children())


@pytest.fixture
def process():
    process = RenderProcess(SOURCES, BOUNDS)
    yield process
    process.close()


def test_values_and_failures_cross(process):
    for value in ("é日\ud800" + "\0", [1, 2.5, None, True, {"a": "b"}], "x" * 500_000):
        assert process.render("echo", {"x": value}) == str(value)
    for name, kind, words in (
        ("refuses", Rejected, "no 7"),
        ("steals", Forbidden, "append"),
        ("fails", Failed, "UndefinedError"),
    ):
        with pytest.raises(kind, match=words):
            process.render(name, {"x": 7 if name == "refuses" else []})
    with pytest.raises(Failed, match="must be JSON"):
        process.render("echo", {"x": object()})
    assert len(children()) == 1, "one process for all of them"


def test_it_is_killed_and_starts_again(process):
    for name, words in (("endless", "0.2 s of computing"), ("big", "memory")) * 2:
        with pytest.raises(OutOfBounds, match=words):
            process.render(name, {})
        assert process.render("echo", {"x": 1}) == "1"
    assert len(children()) == 1


def test_wall_time_is_bounded_too():
    process = RenderProcess(SOURCES, ProcessBounds(cpu_s=60, wall_s=0.2))
    with pytest.raises(OutOfBounds, match=r"more than 0\.2 s$"):
        process.render("endless", {})
    process.close()


def test_what_does_not_compile():
    process = RenderProcess({"a": "{{ x }}", "b": "{% if %}"}, BOUNDS)
    with pytest.raises(Broken, match="line 1"):
        process.start()
    process.close()


def test_threads_take_turns(process):
    texts: list[str] = []
    threads = [threading.Thread(target=lambda n=n: texts.append(process.render("echo", {"x": n}))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == [str(n) for n in range(8)]


def test_closing_breaks_a_rendering_off_and_leaves_nothing():
    process = RenderProcess(SOURCES, ProcessBounds(cpu_s=60, wall_s=60))
    process.start()
    assert len(children()) == 1
    failures: list[Exception] = []

    def render() -> None:
        try:
            process.render("endless", {})
        except OutOfBounds as error:
            failures.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    while not process._turn.locked():
        time.sleep(0.001)
    process.close()
    thread.join(10)
    assert not thread.is_alive() and len(failures) == 1 and not children()
    with pytest.raises(LullmError, match="shut down"):
        process.render("echo", {"x": 1})
    process.close()


def test_a_forgotten_process_ends():
    process = RenderProcess(SOURCES, BOUNDS)
    process.start()
    assert len(children()) == 1
    del process
    gc.collect()
    assert not children()


def test_it_ends_with_its_parent():
    """Also when the parent is killed: the process reads the end of the connection."""
    code = (
        "import os, signal, sys; from lullm.text.template.process import *\n"
        "process = RenderProcess({'a': 'x'}, ProcessBounds()); process.start()\n"
        "print(process._running._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    pid = int(parent.stdout)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < deadline, "the rendering process outlives its parent"
        time.sleep(0.01)


def test_the_process_is_used_only_where_it_must_be():
    renderer = Renderer({"quick": "{{ x }}", "unknown": "{{ x | center(3) }}"}, BOUNDS)
    assert renderer.render("quick", {"x": "a"}, may_block=False) == "a" and not renderer.has_process
    with pytest.raises(WouldBlock):
        renderer.render("unknown", {"x": "a"}, may_block=False)
    assert not renderer.has_process
    assert renderer.render("unknown", {"x": "a"}) == " a " and renderer.has_process
    with pytest.raises(Rejected):
        Renderer({"a": "{{ raise_exception('x') }}"}).render("a", {}, may_block=False)
    renderer.close()


def test_costly_messages_go_to_the_process():
    """With a harmless template: it doubles what a client sends."""
    template = (
        "{% set ns = namespace(s=[x]) %}{% for i in n %}{% set ns.s = ns.s + [ns.s | join] %}{% endfor %}{{ ns.s }}"
    )
    renderer = Renderer({"a": template}, BOUNDS)
    assert renderer.render("a", {"x": "b", "n": "ab"}, may_block=False) == "['b', 'b', 'bb']"
    with pytest.raises(WouldBlock):
        renderer.render("a", {"x": "b", "n": "a" * 100}, may_block=False)
    with pytest.raises(OutOfBounds):
        renderer.render("a", {"x": "b", "n": "a" * 100})
    renderer.close()


class Owner:
    """What is being built while a template is tried."""


def test_a_failure_keeps_no_frames_of_its_callers():
    """Jinja's rewritten tracebacks are cycles: a dropped LLM kept its weights until a garbage collection."""
    renderer = Renderer({"default": "{{ 'a' + x }}"})

    def build() -> "weakref.ref[Owner]":
        owner = Owner()
        with pytest.raises(Failed):
            renderer.render("default", {"x": [1]})
        return weakref.ref(owner)

    gc.collect()
    gc.disable()
    try:
        assert build()() is None
    finally:
        gc.enable()
