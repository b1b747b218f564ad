"""SleepLadder: when an idle engine sleeps, and how deep. Pure policy: it reads a clock and touches no engine."""

from collections.abc import Callable, Sequence

from lullm.config.option.sleep_after import SleepRung

LIGHTEST = SleepRung(0.0, 1, "auto")
"""How an engine without a ladder sleeps if a request's `keep_alive` says when."""


class SleepLadder:
    """Counts idle time against rungs. An empty ladder asks for a sleep only if a request says when.

    The engine's owner calls `busy` and `idle`, as often as it likes, and `reset` after a call that slept or woke. `due`
    then returns each rung once its time has come. Not safe to share between threads, except `idle_s` and `next`.

    Args:
        clock: monotonic seconds, such as `time.monotonic`.
    """

    def __init__(self, rungs: Sequence[SleepRung], clock: Callable[[], float]):
        self._rungs = tuple(rungs)
        self._clock = clock
        self._idle_since: float | None = clock()
        self._num_taken = 0
        self._keep_alive_s: float | None = None

    def __bool__(self) -> bool:
        return bool(self._rungs)

    def busy(self) -> None:
        """Requests run: the next idle time starts at the first rung."""
        self._idle_since = None
        self._num_taken = 0

    def idle(self) -> None:
        """No requests run: idle time counts from the first such call after `busy`."""
        if self._idle_since is None:
            self._idle_since = self._clock()

    def keep_alive(self, seconds: float | None) -> None:
        """Set the idle seconds before the first rung, for the latest request; None: the ladder's own.

        The other rungs keep their distance from the first. Negative: never sleep. An empty ladder has one rung then.
        """
        self._keep_alive_s = seconds

    def reset(self) -> None:
        """A call put the engine to sleep or woke it: the clock starts again, and a request's `keep_alive` ends."""
        self._num_taken = 0
        self._keep_alive_s = None
        if self._idle_since is not None:
            self._idle_since = self._clock()

    def skip(self, is_reached: Callable[[SleepRung], bool]) -> None:
        """Leave out the next rungs that the engine has reached already."""
        rungs = self._steps(self._keep_alive_s)
        while self._num_taken < len(rungs) and is_reached(rungs[self._num_taken]):
            self._num_taken += 1

    @property
    def idle_s(self) -> float:
        """Seconds since the last request ended; 0 while one runs."""
        since = self._idle_since
        return 0.0 if since is None else self._clock() - since

    def next(self) -> tuple[SleepRung, float] | None:
        """The next rung and the seconds until it (0: due); None while requests run, or after the last rung."""
        since, taken, keep_alive_s = self._idle_since, self._num_taken, self._keep_alive_s
        rungs = self._steps(keep_alive_s)
        if since is None or taken >= len(rungs) or (keep_alive_s is not None and keep_alive_s < 0):
            return None
        rung = rungs[taken]
        due_s = rung.idle_s if keep_alive_s is None else keep_alive_s + rung.idle_s - rungs[0].idle_s
        return rung, max(since + due_s - self._clock(), 0.0)

    def due(self) -> SleepRung | None:
        """The deepest rung that is due, or None. Each is returned once between two calls of `busy` or `reset`."""
        found = None
        while (step := self.next()) is not None and step[1] == 0:
            found = step[0]
            self._num_taken += 1
        return found

    def _steps(self, keep_alive_s: float | None) -> tuple[SleepRung, ...]:
        return self._rungs if self._rungs or keep_alive_s is None else (LIGHTEST,)
