"""Engines of a `ReplicaClient` that live in threads: they speak the protocol, make tokens up, and fail on order."""

import contextlib
import os
import queue
import socket
import threading

from lullm.engine.process.frame import framed, read_frames
from lullm.engine.process.message import (
    HERE,
    Admit,
    Answer,
    Call,
    Cancel,
    Ended,
    Outputs,
    Ready,
    Status,
    Stop,
    Weight,
    WireCompletion,
    WireOutput,
    Withdraw,
    decode_command,
    encode,
)
from lullm.errors import EngineDeadError
from lullm.types.monitor.stats import EngineStats
from lullm.types.sleep import TAGS, SleepReport, WakeReport
from lullm.types.wire.plain_error import plain_error

SILENT_LOOKS = 3
"""So often must a hung engine be looked at before it counts as lost."""


class FakeEngine:
    """In the place of an `EngineProcess`.

    Args:
        fault: 'kill', 'hang' or 'error', which happens in place of the message of this number; None: nothing does.

    It draws once it is released.
    """

    tick_s = 0.002

    def __init__(self, fault, at):
        self.sock, self._theirs = socket.socketpair()
        self.owner = os.getpid()
        self.is_closed, self.error = False, None
        self._fault, self._at, self._num_sent = fault, at, 0
        self._state, self._tags = "awake", ()
        self._num_looks = 0
        self._active = {}  # serial -> [tokens so far, tokens wanted]
        self._update = None  # (serial of the call, weights so far)
        self._commands = queue.SimpleQueue()
        self._is_held = True
        self._is_hung = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._run)]
        for thread in self._threads:
            thread.start()

    def release(self):
        """Begin to draw."""
        self._is_held = False
        self._commands.put(Cancel(0))  # wakes the thread

    # -- what a client sees of the process -------------------------------------------------------------------------

    def wait_ready(self):
        self.sock.setblocking(False)
        return Ready(256, ("resident_bytes",), self._status())

    def lose_if_silent(self):
        if self._is_hung.is_set():
            self._num_looks += 1
            if self._num_looks == SILENT_LOOKS:
                self._break()

    def cause_of_death(self):
        self.close()
        return "the engine's process is silent" if self._is_hung.is_set() else "the engine's process was killed"

    def join(self):
        self.close()

    def close(self):
        self._break()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        self.sock.close()
        self._theirs.close()
        self.is_closed = True

    # -- the engine ------------------------------------------------------------------------------------------------

    def _read(self):
        for frame in read_frames(self._theirs):
            self._commands.put(decode_command(frame))
        self._commands.put(None)

    def _run(self):
        try:
            while True:
                while not self._commands.empty() or not self._can_step():
                    command = self._commands.get()
                    if command is None:
                        return
                    self._take(command)
                self._step()
        except (OSError, _Over):
            pass
        except Exception as error:  # of this fake's own
            self.error = error
            self._break()

    def _can_step(self):
        return not self._is_held and self._active and self._state == "awake" and self._update is None

    def _step(self):
        outputs = []
        for serial, (drawn, wanted) in list(self._active.items()):
            is_last = drawn + 1 == wanted
            outputs.append(_output(serial, [drawn], "length" if is_last else None))
            self._active[serial][0] += 1
            if is_last:
                del self._active[serial]
        self._send(Outputs(outputs, self._status()))

    def _take(self, command):
        match command:
            case Admit():
                self._active[command.serial] = [0, command.request.params.get("max_tokens", 16)]
            case Withdraw():
                self._active.pop(command.serial, None)
            case Call():
                self._call(command)
            case Weight():
                self._weigh(command)
            case Stop():
                self._send(Ended())
                raise _Over
            case Cancel():
                pass

    def _call(self, command):
        if command.verb == "update_weights":
            self._update = command.serial, 0
            return
        answers = {
            "sleep": lambda: SleepReport(1, TAGS, 1, 0, 0.0),
            "wake_up": lambda: WakeReport(TAGS, 1, 0.0),
            "reset_prefix_cache": lambda: True,
            "abort_request": self._abort,
        }
        if command.verb in ("sleep", "wake_up"):
            is_sleep = command.verb == "sleep"
            self._state, self._tags = ("weights_offloaded", TAGS) if is_sleep else ("awake", ())
        self._answer(command.serial, answers[command.verb]())

    def _abort(self):
        self._send(Outputs([_output(serial, [], "abort") for serial in self._active]))
        self._active.clear()

    def _weigh(self, command):
        self._answer(command.serial, None)
        serial, count = self._update
        if command.data is not None:
            self._update = serial, count + 1
            return
        self._update = None
        self._answer(serial, count)

    def _answer(self, serial, value):
        self._send(Answer(serial, self._status(), encode(value)))

    def _status(self):
        return Status(EngineStats(num_blocks=64), self._state, self._tags, bool(self._tags))

    def _send(self, news):
        self._num_sent += 1
        if self._fault is not None and self._num_sent == self._at:
            if self._fault == "hang":
                self._is_hung.set()
                while self._commands.get() is not None:
                    pass
            elif self._fault == "error":
                self._theirs.sendall(framed(encode(Ended(plain_error(EngineDeadError("a step failed"), HERE)))))
            else:
                self._break()
            raise _Over
        self._theirs.sendall(framed(encode(news)))

    def _break(self):
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)


class _Over(Exception):
    """The engine has ended."""


def _output(serial, token_ids, finish_reason):
    completion = WireCompletion(0, "x" * len(token_ids), token_ids, None, None, finish_reason)
    return WireOutput(serial, [completion], finish_reason is not None, (0.0, 0.0, 0.0, 0.0, 0.0))


class FakeEngines:
    """Builds them, in the place of the class `EngineProcess`. `faults`: (fault, message), one after the other."""

    def __init__(self, *faults):
        self.all = []
        self._faults = list(faults)
        self._lock = threading.Lock()

    def __call__(self, *args):
        with self._lock:
            fault = self._faults.pop(0) if self._faults else (None, 0)
            self.all.append(FakeEngine(*fault))
            return self.all[-1]
