"""`lullm chat` and `lullm run` on a pseudo-terminal, as a person at a keyboard has them."""

import contextlib
import os
import pty
import re
import select
import sys
import time
from collections.abc import Iterator

import pytest
from kit.ready_process import ReadyPopen, take_terminal

WAIT_S = 30.0
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"


class Keyboard:
    """Types, and waits for what the screen shows."""

    def __init__(self, *argv: str):
        self._own, theirs = pty.openpty()
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm"}
        self.process = ReadyPopen(
            [sys.executable, "-m", "lullm", *argv],
            **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
            env=env,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(theirs)
        self._unread = ""

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def see(self, pattern: str) -> str:
        """What has come, up to the end of the first match."""
        deadline = time.monotonic() + WAIT_S
        while (found := re.search(pattern, self._unread)) is None:
            ready, _, _ = select.select([self._own], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{pattern!r} did not come, but {self._unread!r}"
            try:
                self._unread += os.read(self._own, 65536).decode()
            except OSError:  # the other side is closed
                pytest.fail(f"{pattern!r} did not come, but {self._unread!r} and the end")
        seen, self._unread = self._unread[: found.end()], self._unread[found.end() :]
        return seen

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)


@pytest.fixture
def start() -> Iterator:
    with contextlib.ExitStack() as stack:

        def begin(*argv: str) -> Keyboard:
            keyboard = Keyboard(*argv)
            stack.callback(keyboard.close)
            return keyboard

        yield begin


def test_a_conversation(start):
    chat = start("chat", "demo", "--temp", "0")
    chat.see("Talk to demo.*\n> ")
    chat.type("/help\n")
    told = chat.see(r"several lines\r\n.*> ")
    assert all(name in told for name in ("/set", "/reset", "/stats", "Ctrl-D"))
    chat.type("What is 17 + 25?\n")
    chat.see(r"17 \+ 25 = 42.*\r\n.*> ")
    chat.type("/stats\n")
    chat.see("statistics are shown")
    chat.type('"""What is\n')
    chat.see(r"\.\.\. ")
    chat.type('2 + 3?"""\n')
    chat.see(r"prompt tokens, \d+ new, first after .*tokens/s")
    # With other seeds the answer may end by itself, after eight tokens.
    chat.type("/set temperature 5\n/set seed 2\n/set max_tokens 300\n/set\n")
    chat.see(r"max_tokens 300\r\n")
    chat.type("/reset\nTell me a story\n")
    chat.see(r"a story\r\n.{20}")
    chat.type(CTRL_C)
    told = chat.see(r"(\d+) new, first after.*\r\n.*> ")
    assert int(re.search(r"(\d+) new", told)[1]) < 300, "Ctrl-C stops the answer"
    chat.type("/set temperature 0\n/reset\nWhat is 1 + 1?\n")
    chat.see(r"1 \+ 1 = 2")
    chat.see("> ")
    chat.type(f"{UP}\n")
    chat.see(r"What is 1 \+ 1\?\r\n.*=.*\r\n")
    chat.see("> ")
    chat.type("half a line")
    chat.see("half a line")
    time.sleep(0.1)  # Python looks for signals, then waits for a key: it misses one in between until the next key
    chat.type(CTRL_C)  # drops the line
    chat.see("> ")
    chat.type("/exit\n")
    assert chat.process.wait(WAIT_S) == 0


def test_thoughts_are_pale(start):
    """Of a demo model that is said to think to the end."""
    run = start("run", "demo", "--reasoning-parser", "deepseek_r1", "--temp", "0", "-n", "8", "What is 17 + 25?")
    assert re.search("\x1b\\[2m[^\x1b]+\x1b\\[22m", run.see(r"\x1b\[22m"))
    assert run.process.wait(WAIT_S) == 0


def test_run_without_a_prompt_is_a_conversation(start):
    run = start("run", "demo", "-n", "8")
    run.see("Talk to demo.*\n> ")
    run.type(CTRL_D)
    assert run.process.wait(WAIT_S) == 0
