"""Admission and SleepControl without a thread: a recorder in the engine's place, and a clock that is set by hand."""

import asyncio
from types import SimpleNamespace

import pytest

from lullm.config.engine import EngineConfig
from lullm.engine.caller.stream import LoopOutlet, OutputStream
from lullm.engine.thread.admission import Admission
from lullm.engine.thread.mailbox import EngineCall, Mailbox
from lullm.engine.thread.sleep_control import SleepControl
from lullm.errors import EngineAsleepError, EngineDeadError, InvalidRequestError, SleepCancelledError, WakeUpError
from lullm.types.outputs import RequestOutput
from lullm.types.sleep import SleepOptions, SleepReport, WakeReport


class Loop:
    """An event loop that runs at once what it is given, and counts."""

    def __init__(self):
        self.num_calls = 0

    def call_soon_threadsafe(self, call):
        self.num_calls += 1
        call()


class RecordedEngine:
    """Is awake, paused or asleep, holds ids, and writes down what is asked of it."""

    def __init__(self):
        self.sleep_state = "awake"
        self.ids = []
        self.calls = []
        self.failure = None
        self.config = SimpleNamespace(enable_prefix_caching=False)
        self.lifecycle = SimpleNamespace(check=lambda options: None)

    def is_sleeping(self):
        return self.sleep_state != "awake"

    @property
    def sleeping_tags(self):
        return () if self.sleep_state in ("awake", "paused") else ("weights", "kv_cache")

    def check_health(self):
        pass

    def has_unfinished_requests(self):
        return bool(self.ids)

    def add_processed(self, request):
        if self.is_sleeping():
            raise EngineAsleepError("asleep")
        if request.request_id in self.ids:
            raise InvalidRequestError("already in use", "request_id")
        self.ids.append(request.request_id)

    def abort_request(self, request_id, wants_output=True):
        self.ids.remove(request_id)

    def sleep(self, level, mode, tags, backup, keep_prefix_cache):
        self.calls.append(("sleep", level, backup))
        self._fail()
        self.sleep_state = ("paused", "weights_offloaded", "discard_all")[level]
        return SleepReport(level, self.sleeping_tags, 1, 1, 0.1)

    def wake_up(self, tags):
        self.calls.append(("wake_up", tags))
        self._fail()
        self.sleep_state = "awake"
        return WakeReport(("weights", "kv_cache"), 1, 0.1)

    def _fail(self):
        if self.failure is not None:
            raise self.failure


class House:
    """Everything around one recorded engine; `now` is the clock of the ladder."""

    def __init__(self, **options):
        self.now = 0.0
        self.loop, self.engine, self.mailbox = Loop(), RecordedEngine(), Mailbox()
        idle = EngineConfig(enable_sleep_mode=True, **options).idle
        self.sleep_control = SleepControl(self.engine, self.mailbox, idle, clock=lambda: self.now)
        self.admission = Admission(self.engine, self.mailbox, self.sleep_control, idle)

    def admit(self, request_id, sent_s=0.0, keep_alive=None):
        stream = OutputStream(LoopOutlet(self.loop), sent_s, keep_alive)
        self.admission.admit(SimpleNamespace(request_id=request_id), stream)
        return stream

    def begin_sleep(self, level=1, mode="wait"):
        options = SleepOptions(level, mode)
        call = EngineCall(lambda: self.sleep_control.sleep(options))
        self.sleep_control.begin_sleep(call, options)
        return call.answer

    def turn(self):
        """What a thread does after its step."""
        self.sleep_control.run_waiting_sleeps()
        self.admission.admit_parked()
        self.sleep_control.run_due(bool(self.engine.ids) or self.admission.has_parked, is_quiet=True)


def error_of(stream):
    assert stream.is_taken.is_set()
    error = asyncio.run(stream.items.take())
    assert isinstance(error, Exception)
    return error


@pytest.fixture
def house():
    """Requests wake its engine."""
    return House(auto_wake=True)


@pytest.fixture
def strict():
    """Requests do not wake its engine."""
    return House()


def test_an_awake_engine_takes_the_request(house):
    stream = house.admit("a")
    assert house.engine.ids == ["a"] and stream.is_taken.is_set() and not stream.items
    assert isinstance(error_of(house.admit("a")), InvalidRequestError)
    assert house.engine.ids == ["a"]


def test_a_sleeping_engine_is_woken_or_refuses(house, strict):
    for each in (house, strict):
        each.sleep_control.sleep(SleepOptions(1))
        stream = each.admit("a")
        if each is house:
            assert each.engine.calls[1:] == [("wake_up", None)] and each.engine.ids == ["a"]
        else:
            assert isinstance(error_of(stream), EngineAsleepError) and each.engine.ids == []


def test_a_request_waits_for_the_end_of_a_pause(house):
    house.sleep_control.sleep(SleepOptions(0))
    stream, gone = house.admit("a"), house.admit("b")
    house.turn()
    assert house.admission.has_parked and not stream.is_taken.is_set()
    gone.is_closed = True
    house.sleep_control.resume()
    house.turn()
    assert house.engine.ids == ["a"] and stream.is_taken.is_set() and not house.admission.has_parked


def test_a_parked_request_whose_reader_goes_is_forgotten(house):
    house.sleep_control.sleep(SleepOptions(0))
    gone = house.admit("a")
    house.turn()
    assert house.admission.has_parked
    gone.is_closed = True
    house.turn()
    assert not house.admission.has_parked and house.engine.sleep_state == "paused"


def test_a_request_waits_for_a_sleep_that_waits_or_is_refused(house, strict):
    for each in (house, strict):
        each.admit("running")
        answer = each.begin_sleep()
        stream = each.admit("late")
        each.turn()
        assert not answer.done()
        each.engine.ids.clear()
        each.turn()
        assert answer.result().level == 1
        if each is house:
            assert each.engine.ids == ["late"] and each.engine.calls[-1] == ("wake_up", None)
        else:
            assert "going to sleep" in str(error_of(stream)) and each.engine.ids == []


def test_a_waiting_sleep_that_was_cancelled_holds_nothing_up(strict):
    strict.admit("running")
    strict.begin_sleep().cancel()
    strict.admit("next")
    assert strict.engine.ids == ["running", "next"]


def test_another_sleep_or_a_wake_up_overtakes_a_waiting_sleep(house):
    for overtake in (lambda: house.sleep_control.sleep(SleepOptions(1)), lambda: house.sleep_control.wake_up(None)):
        house.engine.ids = ["running"]
        answer = house.begin_sleep()
        overtake()
        house.turn()
        assert isinstance(answer.exception(), SleepCancelledError)
        house.engine.sleep_state = "awake"


def test_one_failed_wake_up_fails_all_that_were_sent_before_it(house, caplog):
    house.sleep_control.sleep(SleepOptions(1))
    house.engine.failure = WakeUpError("another checksum")
    early = float("-inf")
    for _ in range(3):
        assert isinstance(error_of(house.admit("a", sent_s=early)), WakeUpError)
    assert house.engine.calls.count(("wake_up", None)) == 1
    house.engine.failure = None
    house.admit("a", sent_s=float("inf"))
    assert house.engine.ids == ["a"]


def test_a_bug_fails_its_request_and_is_raised(house):
    house.sleep_control.sleep(SleepOptions(1))
    house.engine.failure = RuntimeError("a bug")
    stream = OutputStream(LoopOutlet(house.loop), 0.0)
    with pytest.raises(RuntimeError):
        house.admission.admit(SimpleNamespace(request_id="a"), stream)
    assert isinstance(error_of(stream), EngineDeadError)


def test_nothing_sleeps_or_wakes_while_the_thread_drains(house):
    house.sleep_control.sleep(SleepOptions(0))
    house.mailbox.drain(lambda: None)
    assert isinstance(error_of(house.admit("a")), EngineDeadError), "it would wait for ever"
    house.engine.sleep_state = "weights_offloaded"
    assert isinstance(error_of(house.admit("b")), EngineDeadError)
    house.engine.sleep_state = "awake"
    house.admit("c")
    assert house.engine.ids == ["c"], "it was sent before the drain"
    for call in (lambda: house.sleep_control.sleep(SleepOptions(1)), lambda: house.sleep_control.wake_up(None)):
        with pytest.raises(EngineDeadError):
            call()
    assert isinstance(house.begin_sleep().exception(), EngineDeadError)


def test_a_request_whose_reader_has_gone_is_neither_admitted_nor_woken_for(house):
    house.sleep_control.sleep(SleepOptions(1))
    stream = OutputStream(LoopOutlet(house.loop), 0.0, is_closed=True)
    house.admission.admit(SimpleNamespace(request_id="a"), stream)
    assert house.engine.ids == [] and len(house.engine.calls) == 1


def test_an_abort_ends_its_own_request_only(house):
    first = house.admit("a")
    house.engine.ids.remove("a")
    house.admission.deliver([RequestOutput("a", None, [], [], finished=True)])
    house.admit("a")
    house.admission._abort("a", first)
    assert house.engine.ids == ["a"], "another request has the id now"


def test_outputs_are_delivered_with_one_call_per_loop(house):
    streams = [house.admit(str(number)) for number in range(5)]
    house.loop.num_calls = 0
    outputs = [RequestOutput(str(number), None, [], [], finished=False) for number in range(5)]
    house.admission.deliver([*outputs, RequestOutput("unknown", None, [], [], finished=True)])
    assert house.loop.num_calls == 1
    assert [asyncio.run(stream.items.take()) for stream in streams] == outputs


def test_no_stream_stays_open(house):
    running = house.admit("a")
    house.sleep_control.sleep(SleepOptions(0))
    parked = house.admit("b")
    error = EngineDeadError("the end")
    house.admission.refuse_parked(error)
    assert error_of(parked) is error and not running.items
    house.admission.fail_all(error)
    assert error_of(running) is error


def test_the_ladder_descends_when_no_request_runs_or_waits():
    house = House(sleep_after="60s:1,10m:2")
    house.admit("a", keep_alive=90.0)
    house.now = 1000.0
    house.turn()
    house.engine.ids.clear()
    house.turn()
    assert house.sleep_control.wait_s() == 90.0, "by the wish of the last request"
    house.now += 89.0
    house.turn()
    assert house.engine.calls == []
    house.now += 1.0
    house.turn()
    assert house.engine.calls == [("sleep", 1, "auto")]
    house.now += 540.0
    house.turn()
    assert house.engine.calls[1:] == [("sleep", 2, "auto")] and house.sleep_control.next_sleep is None


def test_the_ladder_leaves_a_paused_engine_alone():
    house = House(sleep_after="60s:1")
    house.sleep_control.sleep(SleepOptions(0))
    house.now = 1000.0
    house.turn()
    assert house.engine.calls == [("sleep", 0, "auto")] and house.sleep_control.wait_s() is None
