"""Mailbox: commands run in their order, and none is sent to a thread that does not read any more."""

from types import SimpleNamespace

import pytest

from lullm.engine.thread.mailbox import EngineCall, Mailbox, ThreadState
from lullm.errors import EngineDeadError, InvalidRequestError


def test_commands_run_in_their_order():
    mailbox, seen = Mailbox(), []
    for number in range(3):
        mailbox.send(lambda number=number: seen.append(number))
    assert not mailbox.is_empty
    mailbox.wait(timeout_s=0)
    assert seen == [0]
    mailbox.run_all()
    mailbox.wait(timeout_s=0)
    assert seen == [0, 1, 2] and mailbox.is_empty


def test_draining_takes_commands_and_no_new_work():
    mailbox, seen = Mailbox(), []
    mailbox.check_running()
    mailbox.drain(lambda: seen.append("stop"))
    assert mailbox.state is ThreadState.DRAINING and not mailbox.is_empty, "the thread has something to read"
    with pytest.raises(EngineDeadError, match="being shut down"):
        mailbox.check_running()
    mailbox.send(lambda: seen.append("abort"))
    mailbox.run_all()
    assert seen == ["stop", "abort"]


def test_the_thread_that_reads_the_last_command_knows_that_it_drains(monkeypatch):
    mailbox, seen = Mailbox(), []
    monkeypatch.setattr(mailbox, "_commands", SimpleNamespace(put=lambda command: seen.append(mailbox.state)))
    mailbox.drain(lambda: None)
    assert seen == [ThreadState.DRAINING], "or it would wait for a command after the last"


@pytest.mark.parametrize("failure", [None, EngineDeadError("a step failed")])
def test_what_has_ended_refuses_everything(failure):
    mailbox = Mailbox()
    error = mailbox.close(failure)
    assert mailbox.state is (ThreadState.FAILED if failure else ThreadState.CLOSED)
    assert failure in (None, error)
    for call in (mailbox.check_running, lambda: mailbox.send(lambda: None)):
        with pytest.raises(EngineDeadError) as info:
            call()
        assert info.value is error
    mailbox.drain(lambda: None)
    assert mailbox.is_empty and mailbox.state is not ThreadState.DRAINING


def test_errors_of_calls():
    def fail_with(error):
        def function():
            raise error

        return function

    foreseen = EngineCall(fail_with(InvalidRequestError("no")))
    foreseen.run()
    assert isinstance(foreseen.answer.exception(), InvalidRequestError)
    foreign = EngineCall(fail_with(RuntimeError("the caller's")), is_foreign=True)
    foreign.run()
    assert isinstance(foreign.answer.exception(), RuntimeError)
    unforeseen = EngineCall(fail_with(RuntimeError("a bug")))
    with pytest.raises(RuntimeError):
        unforeseen.run()
    assert isinstance(unforeseen.answer.exception(), EngineDeadError)
    cancelled = EngineCall(fail_with(RuntimeError("never run")))
    cancelled.answer.cancel()
    cancelled.run()
